"""`loadgen completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from loadgen.cli.common import echo

PROGRAM = "loadgen"
VARIABLE = "_LOADGEN_COMPLETE"  # click reads it


@click.command(
    epilog="\b\nExample:\n  loadgen completion bash > ~/.local/share/bash-completion/completions/loadgen\n"
    "  loadgen completion zsh > ~/.zfunc/_loadgen"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that lets SHELL complete commands and options of `loadgen`.

    The program must be found by that name: `./bin/loadgen` is not completed. Each completion starts it once.
    """
    made = get_completion_class(shell)
    assert made is not None
    echo(made(click.get_current_context().find_root().command, {}, PROGRAM, VARIABLE).source(), nl=False)
