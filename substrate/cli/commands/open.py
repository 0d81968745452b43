"""`substrate open`: open the page of the running server in a browser.

The link contains the server's token, and other users of the machine can see the arguments of a
process. The browser therefore gets the path of a private file, which forwards it to the link.
"""

from __future__ import annotations

import html
import os
import sys
import webbrowser

import click

from substrate.cli.commands.token import page_link
from substrate.cli.main import settings_of
from substrate.cli.target.server import find_server
from substrate.cli.terminal.tables import print_json_line
from substrate.security.exposure import connect_address, url_host
from substrate.security.lockfile import find_running, link_file
from substrate.security.private_files import write_private_bytes

__all__ = ("open_page",)

FORWARD = """<!doctype html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<title>Substrate</title>
<meta http-equiv="refresh" content="0; url={link}">
<a href="{link}">Open Substrate</a>
"""


@click.command("open", short_help="Open the page in a browser.")
@click.option("--json", "as_json", is_flag=True, help="Print the link as a line of JSON.")
@click.pass_context
def open_page(ctx: click.Context, *, as_json: bool) -> None:
    """Open the page of the running server in a browser.

    Without a browser, the link is printed. It contains the token of the server, so do not share it.
    """
    settings = settings_of(ctx)
    host = connect_address(settings.bind)
    address = f"http://{url_host(host)}:{settings.port}/"
    running = find_running(settings.port)
    if running is None and not find_server(settings.port, host):
        raise click.ClickException(
            f"No server runs on port {settings.port}. Start one with `substrate serve`."
        )
    link = address if running is None else page_link(settings, running)
    opened = _has_browser() and _open(link, settings.port)
    if as_json:
        print_json_line({"url": link, "opened": opened})
    elif opened:
        click.echo(f"Opened {address} in your browser.")
    else:
        click.echo(link)


def _has_browser() -> bool:
    """Return whether a browser with a window can be started."""
    if not (
        sys.platform == "darwin"
        or any(os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))
    ):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def _open(link: str, port: int) -> bool:
    if "#" not in link:
        return webbrowser.open(link)
    file = link_file(port)
    try:
        write_private_bytes(file, FORWARD.format(link=html.escape(link)).encode())
    except OSError:
        return False
    return webbrowser.open(file.as_uri())
