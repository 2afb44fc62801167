"""Why a command ends with an exit code other than 0.

CommandFailed         1  the thing asked for failed, or the gateway refused it
├── WrongUsage        2  the command line or a setting is wrong
└── GatewayUnreachable 3 nobody answers at the gateway's address
"""

from __future__ import annotations

#: Shown by `--help`.
EXIT_CODES = """\b
Exit codes:
  0    it worked; a job ended with an answer
  1    it failed: the job failed or was cancelled, or the request was refused
  2    the command line or a setting is wrong
  3    the gateway cannot be reached
  130  interrupted with Ctrl-C"""

INTERRUPTED = 130


class CommandFailed(Exception):
    """The thing that was asked for failed; the message is one line for the person at the terminal."""

    exit_code = 1


class WrongUsage(CommandFailed):
    """The command line or a setting is wrong."""

    exit_code = 2


class GatewayUnreachable(CommandFailed):
    """Nobody answers at the gateway's address, or whoever does is not the gateway."""

    exit_code = 3
