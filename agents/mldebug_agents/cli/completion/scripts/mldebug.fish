# Completion of mldebug for fish: `mldebug completion fish` prints this file.
function __mldebug_complete
    set -l words (commandline --tokenize --cut-at-cursor --current-process)
    set -l current (commandline --current-token --cut-at-cursor)
    set -l option (string match --regex -- '^--[a-z-]+=' $current)
    set -l path (string replace --regex -- '^--[a-z-]+=' '' $current)
    for line in (env _MLDEBUG_COMPLETE=fish $words[1] $words[2..-1] "$current" 2>/dev/null)
        set -l told (string split \t -- $line)
        switch $told[1]
            case plain
                printf '%s\t%s\n' $told[2] $told[3]
            case file
                printf "$option%s\n" (__fish_complete_path $path)
            case dir
                printf "$option%s\n" (__fish_complete_directories $path)
            case command
                __fish_complete_command
        end
    end
end
complete --command mldebug --no-files --keep-order --arguments '(__mldebug_complete)'
