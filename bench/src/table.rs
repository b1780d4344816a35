//! Formats rows as aligned text columns.

/// Rows under a head: the first column is left-aligned, the others right-aligned.
pub(crate) fn columns(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|&title| title.to_owned()).collect();
    let all = || std::iter::once(&head).chain(rows);
    let count = all().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| all().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|at| width(at).unwrap_or(0)).collect();
    all().map(|row| line(row, &widths)).collect()
}

fn line(row: &[String], widths: &[usize]) -> String {
    let cells = row.iter().zip(widths).enumerate().map(|(at, (cell, &width))| {
        if at == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") }
    });
    let line: String = cells.collect();
    format!("{}\n", line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["µ".to_owned(), "1.0".to_owned()], vec!["longer".to_owned(), "–".to_owned()]];
        assert_eq!(columns(&["", "n"], &rows), "          n\nµ       1.0\nlonger    –\n");
    }
}
