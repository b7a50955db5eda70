//! The short demo's screen: blocks of a table and of sentences, for a terminal and as a page.

use microslice_metrics::html::{Page, plain};
use microslice_metrics::plot::BarChart;
use microslice_metrics::table::Table;

/// A terminal's usual width.
pub const COLUMNS_MAX: usize = 80;

/// What one part of the demo showed.
pub struct Block {
    pub heading: String,
    /// How to read the table.
    pub about: String,
    pub table: Table,
    /// What the table has no column for, a line each.
    pub notes: Vec<String>,
    /// What the figures say.
    pub reading: Vec<String>,
    /// For the page.
    pub charts: Vec<BarChart>,
}

/// All blocks, no line longer than a terminal's.
pub fn to_text(blocks: &[Block]) -> String {
    let texts: Vec<String> = blocks.iter().map(block_text).collect();
    texts.join("\n")
}

fn block_text(block: &Block) -> String {
    let mut text = wrapped(&format!("{}: {}", block.heading, block.about), "");
    text += &block.table.to_string();
    block.notes.iter().for_each(|note| text += &wrapped(note, "  "));
    block.reading.iter().for_each(|sentence| text += &wrapped(&format!("> {sentence}"), "  "));
    text
}

/// Lines of at most [`COLUMNS_MAX`]; all but the first are indented. A longer word is cut.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![String::new()];
    let mut room = COLUMNS_MAX;
    for word in plain(text).split_whitespace() {
        let word: String = word.chars().take(COLUMNS_MAX - indent.len()).collect();
        let length = word.chars().count();
        let is_first = lines.last().is_some_and(|line| line.trim().is_empty());
        let needed = if is_first { length } else { length + 1 };
        if needed > room {
            lines.push(format!("{indent}{word}"));
            room = COLUMNS_MAX - indent.len() - length;
        } else if let Some(line) = lines.last_mut() {
            let gap = if is_first { "" } else { " " };
            *line += &format!("{gap}{word}");
            room -= needed;
        }
    }
    lines.join("\n") + "\n"
}

/// The same as a page that takes nothing from elsewhere.
pub fn to_page(blocks: &[Block]) -> String {
    let mut page = Page::new("microslice demo");
    for block in blocks {
        page.heading(&block.heading);
        page.paragraph(&block.about);
        page.table(&block.table);
        block.notes.iter().chain(&block.reading).for_each(|line| page.paragraph(line));
        page.plots(&block.charts.iter().map(BarChart::to_svg).collect::<Vec<_>>());
    }
    page.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(name: &str) -> Block {
        let mut table = Table::new(&["guest", ">work"]);
        table.row([name, "-"]);
        Block {
            heading: "Real guests".into(),
            about: "word ".repeat(40),
            table,
            notes: vec![format!("{name} failed")],
            reading: vec!["Better.".into()],
            charts: vec![BarChart { title: name.to_owned(), ..BarChart::default() }],
        }
    }

    #[test]
    fn lines_end_where_the_terminal_does_and_a_word_without_end_is_cut() {
        for text in ["word ".repeat(100), "x".repeat(200), format!("a {} b", "é".repeat(90)), String::new()]
        {
            let text = wrapped(&text, "  ");
            assert!(text.lines().all(|line| line.chars().count() <= COLUMNS_MAX), "{text}");
        }
        assert_eq!(wrapped(&format!("{} bc", "a".repeat(78)), "  "), format!("{}\n  bc\n", "a".repeat(78)));
    }

    #[test]
    fn a_block_is_its_table_between_how_to_read_it_and_what_it_says() {
        let text = to_text(&[block("mix")]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("Real guests: word word "), "{text}");
        assert_eq!(lines[lines.len() - 1], "> Better.");
        assert_eq!(lines[lines.len() - 3..lines.len() - 1], ["mix       -", "mix failed"]);
    }

    #[test]
    fn the_page_takes_nothing_from_elsewhere_and_names_command_neither_it_nor_a_terminal() {
        let name = "<img src=x onerror=alert(1)>\x1b[2J";
        let page = to_page(&[block(name)]);
        assert!(page.starts_with("<!doctype html>") && page.contains("<svg "), "{page}");
        assert!(!page.contains("<img") && !page.contains("<script") && !page.contains("href="), "{page}");
        assert!(!page.contains("http") || page.matches("http").count() == page.matches("www.w3.org").count());
        assert!(page.contains("&lt;img") && !page.contains('\x1b'), "{page}");
        assert!(!wrapped(name, "").contains('\x1b'));
    }
}
