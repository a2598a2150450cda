"""Pages of HTML that open anywhere, print, and need no network: one style for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from robot_rl.processes.files import replace_text

_STYLE_PACKAGE = "robot_rl.evaluation"


def write_page(path: Path, package: str, template: str, content: Mapping[str, Any]) -> Path:
    """Render a template and write it, replacing an older page as a whole.

    Args:
        path: The page.
        package: Where the template is; it extends `page.html.jinja`.
        template: Name of its file.
        content: What it shows; `title` and `subtitle` among it.

    Returns:
        The path.
    """
    folders = [str(resources.files(name)) for name in (package, _STYLE_PACKAGE)]
    environment = Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    written = datetime.now().astimezone().strftime("%d %B %Y, %H:%M %Z")
    page = environment.get_template(template).render({**content, "written": written})
    replace_text(path, page)
    return path
