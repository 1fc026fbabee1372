"""Finding a Chromium, and the switches it is started with."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from levelhead.errors import InputError

ENVIRONMENT_VARIABLE = "LEVELHEAD_CHROMIUM"
"""Path of the Chromium to use, where the recipe names none."""

_COMMANDS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_MAC = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)

SWITCHES = (
    "--disable-gpu",
    # Everything but loopback goes to a proxy that does not exist; Chromium's implicit exceptions are taken back.
    "--proxy-server=http://127.0.0.1:9",
    "--proxy-bypass-list=<-loopback>;127.0.0.1;localhost;[::1]",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    # Pages in the background keep full speed.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
)
"""Switches on top of Playwright's own."""

HOW_TO_INSTALL = (
    "install one (Debian: apt-get install -y --no-install-recommends chromium libatomic1; elsewhere: playwright "
    f"install chromium) or name it in tasks[].executable or the environment variable {ENVIRONMENT_VARIABLE}"
)


def find_chromium(named: str | None = None, bundled: str | None = None) -> Path:
    """Find the Chromium to start.

    Args:
        named: Path from the recipe; nothing else is tried.
        bundled: Where Playwright keeps a browser of its own, installed or not.

    Returns:
        The named path, else ``$LEVELHEAD_CHROMIUM``, else Playwright's own, else the first command on the path.

    Raises:
        InputError: There is none, or the named one does not exist.
    """
    for source, path in (("tasks[].executable", named), (ENVIRONMENT_VARIABLE, os.environ.get(ENVIRONMENT_VARIABLE))):
        if path:
            if not os.access(path, os.X_OK):
                raise InputError(f"{source} is {path}, which is not a program; {HOW_TO_INSTALL}")
            return real_binary(Path(path))
    if bundled and os.access(bundled, os.X_OK):
        return Path(bundled)
    for command in (*_COMMANDS, *_MAC):
        executable = shutil.which(command)
        if executable:
            return real_binary(Path(executable))
    raise InputError(f"no Chromium found for the browser task; {HOW_TO_INSTALL}")


def real_binary(path: Path) -> Path:
    """Return the program behind Debian's wrapper scripts, which may not ``exec`` it and so hide its process."""
    behind = Path("/usr/lib/chromium") / path.name
    if path.parent == Path("/usr/bin") and os.access(behind, os.X_OK):
        return behind
    return path
