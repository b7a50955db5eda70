//! A TOML document in which every key and value knows its place. So files can be laid over one another
//! (`extends`, `--set`), and an error still names the line it came from.

use super::error::{Place, ScenarioError, quoted};
use std::collections::BTreeMap;
use std::sync::Arc;
use toml::de::{DeTable, DeValue};

/// Larger files are refused: no scenario written by a person comes near.
pub const FILE_SIZE_MAX: usize = 1 << 20;

/// Twice as deep as programs can be nested.
const PATH_STEPS_MAX: usize = 48;

/// A value and where it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    pub place: Place,
    pub value: NodeValue,
}

/// What a value is.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeValue {
    String(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    Array(Vec<Node>),
    Table(Table),
}

/// Keys in alphabetical order, each with the place of the key itself.
pub type Table = BTreeMap<String, (Place, Node)>;

impl Node {
    /// What it takes in memory, about. A table has room for eleven entries at a time.
    pub fn bytes(&self) -> usize {
        const ENTRIES: usize = 11;
        let inside = match &self.value {
            NodeValue::String(text) => text.len(),
            NodeValue::Array(items) => items.iter().map(Self::bytes).sum(),
            NodeValue::Table(table) => {
                let room = table.len().div_ceil(ENTRIES) * ENTRIES * size_of::<(String, (Place, Self))>();
                room + table.iter().map(|(key, (_, node))| key.len() + node.bytes()).sum::<usize>()
            }
            _ => 0,
        };
        size_of::<Self>() + inside
    }

    /// What the value is, for errors.
    pub fn kind(&self) -> &'static str {
        match self.value {
            NodeValue::String(_) => "a string",
            NodeValue::Integer(_) => "a whole number",
            NodeValue::Float(_) => "a number",
            NodeValue::Boolean(_) => "true or false",
            NodeValue::Array(_) => "a list",
            NodeValue::Table(_) => "a table",
        }
    }
}

/// Reads a document.
pub fn parse(file: &str, text: &str) -> Result<Node, ScenarioError> {
    let file: Arc<str> = file.into();
    if text.len() > FILE_SIZE_MAX {
        let cause = format!("larger than {} KiB, the limit for one file", FILE_SIZE_MAX >> 10);
        return Err(ScenarioError::new(&Place::whole(&file), cause));
    }
    let document = DeTable::parse(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        let cause = error.message().split('\n').map(str::trim).collect::<Vec<_>>().join("; ");
        ScenarioError::new(&Place::at(&file, text, offset), format!("not valid TOML: {cause}"))
    })?;
    let source = Source { places: Places::of(text), file };
    Ok(Node { place: source.place(0), value: source.table(document.get_ref())? })
}

struct Source {
    file: Arc<str>,
    places: Places,
}

/// Line and column of every byte, without reading the text anew for each value: a list of 500,000 numbers
/// fits into a file.
struct Places {
    /// Before each block of the text: line breaks, and characters.
    blocks: Vec<(u32, u32)>,
    /// Characters before each line.
    lines: Vec<u32>,
    text: Vec<u8>,
}

impl Places {
    const BLOCK: usize = 64;

    fn of(text: &str) -> Self {
        let (mut blocks, mut lines) = (Vec::new(), vec![0]);
        let (mut breaks, mut characters) = (0, 0);
        for (offset, &byte) in text.as_bytes().iter().enumerate() {
            if offset % Self::BLOCK == 0 {
                blocks.push((breaks, characters));
            }
            characters += u32::from(begins_character(byte));
            if byte == b'\n' {
                breaks += 1;
                lines.push(characters);
            }
        }
        Self { blocks, lines, text: text.as_bytes().to_vec() }
    }

    /// Line and column, both from 1.
    fn at(&self, offset: usize) -> (usize, usize) {
        let block = (offset / Self::BLOCK).min(self.blocks.len().saturating_sub(1));
        let (mut line, mut characters) = self.blocks.get(block).copied().unwrap_or_default();
        for &byte in self.text.iter().take(offset).skip(block * Self::BLOCK) {
            characters += u32::from(begins_character(byte));
            line += u32::from(byte == b'\n');
        }
        (line as usize + 1, (characters - self.lines[line as usize]) as usize + 1)
    }
}

fn begins_character(byte: u8) -> bool {
    byte & 0xc0 != 0x80
}

impl Source {
    fn place(&self, offset: usize) -> Place {
        let (line, column) = self.places.at(offset);
        Place { file: self.file.clone(), line, column }
    }

    fn node(&self, value: &DeValue<'_>, offset: usize) -> Result<Node, ScenarioError> {
        let place = self.place(offset);
        let value = match value {
            DeValue::String(text) => NodeValue::String(text.to_string()),
            DeValue::Boolean(value) => NodeValue::Boolean(*value),
            DeValue::Integer(number) => {
                let parsed = i64::from_str_radix(number.as_str(), number.radix());
                NodeValue::Integer(parsed.map_err(|_| {
                    ScenarioError::new(
                        &place,
                        format!("{} doesn't fit into 64 bits", quoted(number.as_str())),
                    )
                })?)
            }
            DeValue::Float(number) => match number.as_str().parse::<f64>() {
                Ok(value) if value.is_finite() => NodeValue::Float(value),
                _ => {
                    let cause = format!("{} is no finite number", quoted(number.as_str()));
                    return Err(ScenarioError::new(&place, cause));
                }
            },
            DeValue::Datetime(_) => {
                return Err(ScenarioError::new(&place, "dates are not used; write times as \"30 ms\""));
            }
            DeValue::Array(items) => NodeValue::Array(
                items
                    .iter()
                    .map(|item| self.node(item.get_ref(), item.span().start))
                    .collect::<Result<_, _>>()?,
            ),
            DeValue::Table(table) => self.table(table)?,
        };
        Ok(Node { place, value })
    }

    fn table(&self, table: &DeTable<'_>) -> Result<NodeValue, ScenarioError> {
        let mut nodes = Table::new();
        for (key, value) in table {
            let key_place = self.place(key.span().start);
            let node = self.node(value.get_ref(), value.span().start)?;
            nodes.insert(key.get_ref().to_string(), (key_place, node));
        }
        Ok(NodeValue::Table(nodes))
    }
}

/// Lays `over` on `base`: tables key by key, everything else replaced.
pub fn overlay(base: Node, over: Node) -> Node {
    match (base.value, over.value) {
        (NodeValue::Table(mut below), NodeValue::Table(above)) => {
            for (key, (place, node)) in above {
                let merged = match below.remove(&key) {
                    Some((_, old)) => overlay(old, node),
                    None => node,
                };
                below.insert(key, (place, merged));
            }
            Node { place: over.place, value: NodeValue::Table(below) }
        }
        (_, value) => Node { place: over.place, value },
    }
}

/// The value of a `--set` option as it would be written in the file: TOML if it is, else the bare text.
pub fn value_of(place: &Place, text: &str) -> Node {
    let document = format!("value = {text}\n");
    let parsed = parse(&place.file, &document).ok().and_then(|node| match node.value {
        NodeValue::Table(mut table) if table.len() == 1 => table.remove("value").map(|(_, node)| node),
        _ => None,
    });
    let mut node =
        parsed.unwrap_or_else(|| Node { place: place.clone(), value: NodeValue::String(text.to_owned()) });
    relocate(&mut node, place);
    node
}

/// Gives a whole tree the same place: a `--set` value has no lines.
fn relocate(node: &mut Node, place: &Place) {
    node.place = place.clone();
    match &mut node.value {
        NodeValue::Array(items) => items.iter_mut().for_each(|item| relocate(item, place)),
        NodeValue::Table(table) => {
            for (key_place, item) in table.values_mut() {
                *key_place = place.clone();
                relocate(item, place);
            }
        }
        _ => {}
    }
}

/// Sets the value at `path` (`host.pcpus`, `vm.target.vcpus`, `vm.0.vcpus`, `vm."a.b".vcpus`): tables by key,
/// lists of tables by their `name` or number.
pub fn set(root: &mut Node, path: &str, value: Node) -> Result<(), ScenarioError> {
    let place = value.place.clone();
    let mut node = root;
    let steps = steps_of(path);
    let (last, parents) = steps.split_last().unwrap_or((&"", &[]));
    if steps.iter().any(|step| step.is_empty()) {
        return Err(ScenarioError::new(&place, "a path is keys with dots between, such as host.pcpus"));
    }
    if steps.len() > PATH_STEPS_MAX {
        let cause = format!("a path of more than {PATH_STEPS_MAX} keys leads nowhere in a scenario");
        return Err(ScenarioError::new(&place, cause));
    }
    if ["extends", "use"].contains(last) && !parents.is_empty() {
        let cause =
            format!("`{last}` was followed before: set {} itself, to a name", quoted(&parents.join(".")));
        return Err(ScenarioError::new(&place, cause));
    }
    for step in parents {
        node = child(node, step, &place)?;
    }
    match &mut node.value {
        NodeValue::Table(table) => {
            table.insert((*last).to_owned(), (place, value));
            Ok(())
        }
        NodeValue::Array(_) => {
            *child(node, last, &place)? = value;
            Ok(())
        }
        _ => Err(ScenarioError::new(&place, format!("{} is {}, not a table", quoted(path), node.kind()))),
    }
}

/// The keys of a path: dots within quotes are part of a key.
fn steps_of(path: &str) -> Vec<&str> {
    let mut is_quoted = false;
    let steps = path.split(|c| {
        is_quoted ^= c == '"';
        c == '.' && !is_quoted
    });
    steps.map(|step| step.strip_prefix('"').and_then(|step| step.strip_suffix('"')).unwrap_or(step)).collect()
}

fn child<'n>(node: &'n mut Node, step: &str, place: &Place) -> Result<&'n mut Node, ScenarioError> {
    let kind = node.kind();
    match &mut node.value {
        NodeValue::Table(table) => {
            let (_, child) = table.entry(step.to_owned()).or_insert_with(|| {
                (place.clone(), Node { place: place.clone(), value: NodeValue::Table(Table::new()) })
            });
            Ok(child)
        }
        NodeValue::Array(items) => {
            let named = items.iter().position(|item| name_of(item) == Some(step));
            let index = named.or_else(|| step.parse().ok()).filter(|index| *index < items.len());
            let names: Vec<String> = items
                .iter()
                .enumerate()
                .map(|(i, item)| name_of(item).map_or(i.to_string(), step_to))
                .collect();
            index.map(|index| &mut items[index]).ok_or_else(|| {
                let cause = format!("no entry {}; there are: {}", quoted(step), names.join(", "));
                ScenarioError::new(place, cause)
            })
        }
        _ => Err(ScenarioError::new(place, format!("{} lies inside of {}", quoted(step), kind))),
    }
}

/// A name as a path has it.
fn step_to(name: &str) -> String {
    if name.contains('.') { format!("\"{name}\"") } else { name.to_owned() }
}

fn name_of(node: &Node) -> Option<&str> {
    let NodeValue::Table(table) = &node.value else { return None };
    match table.get("name").or(table.get("use")).map(|(_, name)| &name.value) {
        Some(NodeValue::String(name)) => Some(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Node {
        parse("test.toml", text).expect("valid TOML")
    }

    fn at<'n>(node: &'n Node, path: &str) -> &'n Node {
        path.split('.').fold(node, |node, step| match &node.value {
            NodeValue::Table(table) => &table[step].1,
            NodeValue::Array(items) => &items[step.parse::<usize>().expect("index")],
            _ => panic!("no {step}"),
        })
    }

    #[test]
    fn values_know_their_line_and_column() {
        let node = read("a = 1\n[b]\n  c = [10,\n 20]\n");
        assert_eq!(at(&node, "b.c.1").place.to_string(), "test.toml:4:2");
    }

    #[test]
    fn a_place_is_the_same_whether_its_text_is_read_at_once_or_in_blocks() {
        let text = "größe = 1\n\n# ".to_owned() + &"é\n€ ".repeat(100) + &"x".repeat(200);
        let (file, places) = (Arc::from("test.toml"), Places::of(&text));
        for (offset, _) in text.char_indices().chain([(text.len(), ' ')]) {
            let place = Place::at(&file, &text, offset);
            assert_eq!(places.at(offset), (place.line, place.column), "byte {offset}");
        }
        assert_eq!(Places::of("").at(0), (1, 1));
    }

    #[test]
    fn a_list_of_half_a_million_values_on_one_line_is_read() {
        let NodeValue::Table(table) = read(&format!("a = [{}]", "1,".repeat(500_000))).value else {
            panic!()
        };
        let NodeValue::Array(items) = &table["a"].1.value else { panic!() };
        assert_eq!(items.last().expect("an item").place.to_string(), "test.toml:1:1000004");
    }

    #[test]
    fn broken_toml_is_one_line_with_its_place() {
        let error = parse("test.toml", "a = 1\nb = = 2\n").expect_err("broken");
        assert!(error.to_string().starts_with("test.toml:2:5: not valid TOML: "), "{error}");
        assert!(!error.to_string().contains('\n'));
    }

    #[test]
    fn an_overlay_replaces_values_and_keeps_the_rest() {
        let merged = overlay(read("a = 1\n[t]\nx = 1\ny = 2"), read("[t]\ny = 3"));
        assert_eq!(at(&merged, "t.y").value, NodeValue::Integer(3));
        assert_eq!(at(&merged, "t.x").value, NodeValue::Integer(1));
        assert_eq!(at(&merged, "a").value, NodeValue::Integer(1));
    }

    #[test]
    fn set_finds_tables_by_key_and_list_entries_by_name_or_number() {
        let mut node = read("[[vm]]\nname = 'target'\nvcpus = 1\n[[vm]]\nname = 'other'");
        for (path, text) in [("vm.other.vcpus", "6"), ("vm.0.vcpus", "7"), ("host.ple.window", "10 us")] {
            set(&mut node, path, value_of(&Place::whole("--set"), text)).expect("set");
        }
        assert_eq!(at(&node, "vm.1.vcpus").value, NodeValue::Integer(6));
        assert_eq!(at(&node, "vm.0.vcpus").value, NodeValue::Integer(7));
        assert_eq!(at(&node, "host.ple.window").value, NodeValue::String("10 us".into()));
        let error =
            set(&mut node, "vm.nobody.vcpus", value_of(&Place::whole("--set"), "1")).expect_err("no VM");
        assert_eq!(error.to_string(), "--set: no entry `nobody`; there are: target, other");
    }

    #[test]
    fn a_path_of_tens_of_thousands_of_keys_is_refused() {
        let value = value_of(&Place::whole("--set"), "1");
        let error = set(&mut read(""), "a.".repeat(60_000).trim_end_matches('.'), value).expect_err("deep");
        assert_eq!(error.to_string(), "--set: a path of more than 48 keys leads nowhere in a scenario");
    }
}
