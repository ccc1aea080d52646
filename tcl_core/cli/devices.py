"""`tcl device`: boards and other hosts that measure for this one."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from tcl_core.cli.app import DATA, AsJson, app, told
from tcl_core.cli.saying import say
from tcl_core.errors import UsageError

device = typer.Typer(help="Boards and other hosts that measure for this one, through TVM's RPC.", no_args_is_help=True)
app.add_typer(device, name="device", rich_help_panel=DATA)
Tracker = Annotated[str, typer.Option(help="Where the tracker listens, host:port.")]


@device.command()
def serve(
    key: Annotated[Optional[str], typer.Option(help="Serve this machine under this name; none: a tracker only.")] = None,
    tracker: Tracker = "127.0.0.1:9190",
    host: Annotated[Optional[str], typer.Option(help="The address at which the server listens; none: this machine's own alone.")] = None,
    port: Annotated[Optional[int], typer.Option(min=1, max=65535, help="Its port; none: the first free one.")] = None,
) -> None:
    """Serve this machine's CPU to others, and start a tracker where none answers.  Example: tcl device serve --key pi4"""
    from tcl_core.stages.device import serve as serve_until_stopped

    if key is None and (host is not None or port is not None):
        raise UsageError("--host and --port are of a server, which needs --key; a tracker listens where --tracker says")
    serve_until_stopped(key, tracker, host or "127.0.0.1", port, say)


@device.command("list")
def list_(tracker: Tracker = "127.0.0.1:9190", as_json: AsJson = False) -> None:
    """Show the devices that a tracker knows.  Example: tcl device list --tracker 192.168.0.2:9190"""
    from tcl_core.stages.device import devices_at, devices_text

    say(told(devices_at(tracker), devices_text, as_json))
