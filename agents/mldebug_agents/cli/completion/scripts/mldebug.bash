# Completion of mldebug for bash: `mldebug completion bash` prints this file.
_mldebug() {
    local type value help
    COMPREPLY=()
    # The line up to the cursor, and what readline will replace: where = and : break words, that is less than a word.
    while IFS=$'\t' read -r type value help; do
        case $type in
        plain) COMPREPLY+=("$value") ;;
        file) compopt -o default ;;
        dir) compopt -o dirnames ;;
        command) mapfile -t COMPREPLY < <(compgen -c -- "$2" | sort -u) && compopt -o default ;;
        esac
    done < <(_MLDEBUG_COMPLETE=bash "${1/#\~/$HOME}" "${COMP_LINE:0:COMP_POINT}" "$2" 2>/dev/null)
    # --job= wants its value at once
    [[ ${#COMPREPLY[@]} -ne 1 || ${COMPREPLY[0]} != *= ]] || compopt -o nospace
}
complete -o nosort -F _mldebug mldebug 2>/dev/null || complete -F _mldebug mldebug # before bash 4.4
