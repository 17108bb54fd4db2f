"""A hook of MkDocs: links to what lies outside docs/ work in the site as they do on a Git host.

A page links to `../deploy/README.md` or `../tests/bench/helpers.py`. Some of these files are pages of the site (`PAGES`); every other one that a
page links to gets a page that shows it, in no menu and not searched. So the site needs no Git host, and opens from disk.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "overview.md",
    "deploy/README.md": "service.md",
    "deploy/prometheus/README.md": "prometheus.md",
}
SHOWN = "files"
# They name everything: the search finds them last
RECORDS = {"changelog.md", "gpu-validation.md", "seeds.md"}
LANGUAGES = {".json": "json", ".py": "python", ".yaml": "yaml"}
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s#]+)(?=[)#])")
ROW = re.compile(r"^\|.*$", re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")
FENCE = "~~~~~~"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are made of files outside docs/."""
    for path, page in PAGES.items():
        files.append(File.generated(config, page, content=_read(path)))
    texts = {
        _source(one.src_uri): one.content_string for one in files if one.is_documentation_page()
    }
    linked = {target for path, text in texts.items() for target in targets(text, path)}
    outside = {path for path in linked if not path.startswith("docs/")} - PAGES.keys()
    for path in sorted(outside):
        made = File.generated(
            config, f"{SHOWN}/{path}.md", content=_shown(path), inclusion=InclusionLevel.NOT_IN_NAV
        )
        files.append(made)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point its links at pages of the site, and leave code in tables as it is: only Git hosts want `\\|` there."""
    uri = page.file.src_uri
    if uri.startswith(f"{SHOWN}/"):
        return markdown
    if uri in RECORDS:
        page.meta["search"] = {"boost": 0.2}
    plain = ROW.sub(
        lambda row: CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0]), markdown
    )
    return rewritten(plain, _source(uri))


def targets(text: str, source: str) -> Iterator[str]:
    """The files that a text links to, as paths from the root of the repository; what does not exist is left to MkDocs, which complains."""
    for link in LINK.findall(text):
        if target := _target(link, source):
            yield target


def rewritten(text: str, source: str) -> str:
    """The text of a file of the repository, its links as they must be on its page."""
    here = posixpath.dirname(_page(source))

    def replace(found: re.Match[str]) -> str:
        target = _target(found[1], source)
        return posixpath.relpath(_page(target), here or ".") if target else found[1]

    return LINK.sub(replace, text)


def _target(link: str, source: str) -> str:
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if (ROOT / path).is_dir():
        path += "/README.md"
    return path if not path.startswith("..") and (ROOT / path).is_file() else ""


def _source(uri: str) -> str:
    """Where the text of a page stands in the repository."""
    return next((path for path, page in PAGES.items() if page == uri), f"docs/{uri}")


def _page(path: str) -> str:
    """The page of a file."""
    return PAGES.get(path) or (
        path.removeprefix("docs/") if path.startswith("docs/") else f"{SHOWN}/{path}.md"
    )


def _shown(path: str) -> str:
    language = LANGUAGES.get(Path(path).suffix, "text")
    head = "---\nsearch: {exclude: true}\nhide: [navigation, toc]\n---\n"
    return f"{head}# {path}\n\n{FENCE}{language}\n{_read(path)}\n{FENCE}\n"


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")
