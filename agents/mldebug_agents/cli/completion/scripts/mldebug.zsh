#compdef mldebug
# Completion of mldebug for zsh: `mldebug completion zsh` prints this file.
_mldebug() {
    local type value help
    local -a told
    while IFS=$'\t' read -r type value help; do
        case $type in
        plain) told+=("${value//:/\\:}${help:+:$help}") ;;
        file) compset -P '--*='; _files ;;
        dir) compset -P '--*='; _files -/ ;;
        command) _command_names -e || _files ;;
        esac
    done < <(_MLDEBUG_COMPLETE=zsh ${~words[1]} "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)
    (( ! $#told )) || _describe -V mldebug told
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _mldebug "$@"
else
    compdef _mldebug mldebug
fi
