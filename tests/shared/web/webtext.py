"""HTML as a reader sees it, and names that mean harm."""

import html
import re

HOSTILE = "<img src=x onerror=alert(1)>\"'&\u202e{{7*7}}</script>"


def text_of(page: str) -> str:
    """The words of a page, one blank between them."""
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", page).split()))
