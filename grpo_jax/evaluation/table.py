"""One table, as text in line or for LaTeX."""

from collections.abc import Sequence
from dataclasses import dataclass

SPECIAL = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "−": "--",
    "±": r"$\pm$",
}


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header; the first column is names, the others are numbers."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """Columns in line, names to the left and numbers to the right."""
        lines = [self.header, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.header))]
        aligned = [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        rule = "-" * max(map(len, aligned))
        return "\n".join([self.title, "", aligned[0], rule, *aligned[1:]])

    def latex(self, notes: Sequence[str] = ()) -> str:
        """A table for the package booktabs."""
        lines = [[_escape(cell) for cell in line] for line in (self.header, *self.rows)]
        first, *rest = [f"    {' & '.join(line)} \\\\" for line in lines]
        return "\n".join(
            [
                r"\begin{table}",
                r"  \centering",
                rf"  \caption{{{_escape(self.title)}}}",
                rf"  \begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}",
                r"    \toprule",
                first,
                r"    \midrule",
                *rest,
                r"    \bottomrule",
                r"  \end{tabular}",
                *([rf"  \par\smallskip\footnotesize {_escape(' '.join(notes))}"] if notes else []),
                r"\end{table}",
            ]
        )


def _escape(cell: str) -> str:
    return "".join(SPECIAL.get(c, c) for c in cell)
