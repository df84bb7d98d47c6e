"""Self-contained HTML pages."""

import base64
import html
from collections.abc import Iterable, Sequence
from pathlib import Path

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
img, video { max-width: 100%; height: auto; }
table { border-collapse: collapse; } td, th { padding: 0.2rem 0.9rem 0.2rem 0; text-align: right; vertical-align: top; }
td:first-child, th:first-child { text-align: left; } code { background: #f2f2f2; padding: 0 0.2rem; }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """The page of parts that are HTML."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def paragraph(lines: Sequence[str]) -> str:
    """Plain text, one line per string."""
    return f"<p>{'<br>'.join(html.escape(line) for line in lines)}</p>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of plain text."""
    lines = ["".join(f"<th>{html.escape(cell)}</th>" for cell in head)]
    lines += ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def picture(file: Path) -> str:
    """A PNG, embedded."""
    return f'<p><img alt="{html.escape(file.stem)}" src="data:image/png;base64,{_encoded(file)}"></p>'


def video(file: Path) -> str:
    """An MP4, embedded."""
    return f'<p><video controls muted loop src="data:video/mp4;base64,{_encoded(file)}"></video></p>'


def _encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()
