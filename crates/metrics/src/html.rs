//! One self-contained HTML page: headings, paragraphs, tables and plots, without script and without the
//! network.

use crate::plot::escape;
use crate::table::{Align, Table};
use std::fmt::Write;

const STYLE: &str = "body{font-family:sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;margin:1rem 0;font-size:.9rem}th,td{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:left}\
td.right,th.right{text-align:right;font-variant-numeric:tabular-nums}.plots{display:flex;flex-wrap:wrap;gap:1rem}\
.note{color:#555}svg{background:#fff}";

/// A page that is built from top to bottom.
#[derive(Debug)]
pub struct Page {
    title: String,
    body: String,
}

impl Page {
    /// An empty page with a title, which is also its first heading.
    pub fn new(title: &str) -> Self {
        Self { title: title.to_owned(), body: format!("<h1>{}</h1>\n", escape(title)) }
    }

    /// Adds a heading.
    pub fn heading(&mut self, text: &str) {
        let _ = writeln!(self.body, "<h2>{}</h2>", escape(text));
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.body, "<p class=\"note\">{}</p>", escape(text));
    }

    /// Adds a table.
    pub fn table(&mut self, table: &Table) {
        let _ = writeln!(self.body, "{}", table_fragment(table));
    }

    /// Adds a row of plots (each a `<svg>` element from [`crate::plot`]).
    pub fn plots(&mut self, plots: &[String]) {
        let _ = writeln!(self.body, "<div class=\"plots\">\n{}\n</div>", plots.join("\n"));
    }

    /// The whole document.
    pub fn render(&self) -> String {
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><meta name=\"viewport\" \
             content=\"width=device-width\"><title>{}</title><style>{STYLE}</style></head>\n<body>\n{}</body>\n</html>\n",
            escape(&self.title),
            self.body
        )
    }
}

/// A description, a file's or a guest's name may hold anything: no byte of theirs commands a terminal, or is
/// one that no page may have.
pub fn plain(text: &str) -> String {
    let harmless = |c: char| !c.is_control() || c == '\n' || c == '\t';
    text.chars().map(|c| if harmless(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// A table as a `<table>` element.
pub fn table_fragment(table: &Table) -> String {
    let class = |align: Align| if align == Align::Right { " class=\"right\"" } else { "" };
    let aligns: Vec<Align> = table.columns().map(|(_, align)| align).collect();
    let mut html = String::from("<table>\n<tr>");
    for (name, align) in table.columns() {
        let _ = write!(html, "<th{}>{}</th>", class(align), escape(name));
    }
    html.push_str("</tr>\n");
    for row in table.rows() {
        html.push_str("<tr>");
        for (cell, align) in row.iter().zip(&aligns) {
            let _ = write!(html, "<td{}>{}</td>", class(*align), escape(cell));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table>");
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_takes_nothing_from_elsewhere_and_escapes_its_texts() {
        let mut table = Table::new(&["figure", ">ours"]);
        table.row(["<script>alert(1)</script>", "7"]);
        let mut page = Page::new("A & B");
        page.table(&table);
        let html = page.render();
        assert!(html.contains("A &amp; B") && html.contains("&lt;script&gt;") && !html.contains("<script"));
        assert!(!html.contains("src=") && !html.contains("href="));
        assert!(html.contains("<td class=\"right\">7</td>"));
    }

    #[test]
    fn a_page_has_no_control_characters() {
        let mut page = Page::new("a\x1b[2Jb");
        page.paragraph("c\0d\u{9b}e\r\n\tf");
        let html = page.render();
        assert!(html.contains("<h1>a\u{fffd}[2Jb</h1>"), "{html}");
        assert!(html.contains("c\u{fffd}d\u{fffd}e\u{fffd}\n\tf"), "{html}");
    }
}
