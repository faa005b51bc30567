"""`navrl completion`: commands, settings and model names completed by the shell."""

from __future__ import annotations

import argparse
from typing import Any

EPILOG = """examples:
  eval "$(navrl completion bash)"                                       in ~/.bashrc
  eval "$(navrl completion zsh)"                                        in ~/.zshrc, after compinit
  navrl completion fish > ~/.config/fish/completions/navrl.fish
"""

BASH = """\
_navrl() {
    local line=${COMP_LINE:0:COMP_POINT}
    local word=${line##*[[:space:]]}
    mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" completion --line "$line" 2>/dev/null)
    COMPREPLY=("${COMPREPLY[@]%%$'\\t'*}")
    COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*[=:]}"}"}")  # readline splits words there
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=.] ]] && compopt -o nospace
    return 0
}
complete -o default -o bashdefault -F _navrl navrl
"""

ZSH = """\
_navrl() {
    local -a found open
    found=("${(@f)$($words[1] completion --line "$LBUFFER" 2>/dev/null)}")
    found=("${(@)found%%$'\\t'*}")
    open=("${(@M)found:#*[=.]}")
    found=("${(@)found:#*[=.]}")
    found=("${(@)found:#}")
    (( $#found + $#open )) || { _files; return }
    (( $#open )) && compadd -S '' -a open
    (( $#found )) && compadd -a found
}
compdef _navrl navrl
"""

FISH = """\
function __navrl_candidates
    set -l words (commandline -opc)
    set -l found ($words[1] completion --line (commandline -cp) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c navrl -f -a '(__navrl_candidates)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "completion",
        help="print a script that completes commands, settings and models in your shell",
        description="Print a script that completes commands, settings and models in your shell.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", nargs="?", choices=[*SCRIPTS], help="your shell")
    parser.add_argument("--line", help=argparse.SUPPRESS)  # the scripts ask with it
    parser.set_defaults(run=run, commands=subparsers)


def run(arguments: argparse.Namespace) -> int:
    """Print the script, or what may follow a line."""
    from navrl.commands.candidates import candidates
    from navrl.errors import ConfigError

    if arguments.line is not None:
        for word, about in candidates(arguments.line, arguments.commands).items():
            print(f"{word}\t{about}" if about else word)
        return 0
    if arguments.shell is None:
        raise ConfigError(f"no shell is named; expected one of {', '.join(SCRIPTS)}")
    print(SCRIPTS[arguments.shell], end="")
    return 0
