# Checks the folders of one crate: awk -v order=… -f scripts/check-rooms.awk crates/CRATE/src/**/*.rs
#
# `order` names the crate's folders, in order, with commas between those that don't use each other. A file uses
# only folders before its own. Within a folder at most five files use each other in a circle. Prints one line
# for each fault.

BEGIN {
    ranks = split(order, of_rank, " ")
    for (at = 1; at <= ranks; at++) {
        count = split(of_rank[at], folders, ",")
        for (folder in folders) rank[folders[folder]] = at
    }
}

function folder_of(module) {
    sub(/::.*/, "", module)
    return module
}

# Notes that the present file uses what `path` names, from the crate's root.
function uses(path, line,    folder, own, fault) {
    folder = folder_of(path)
    own = folder_of(module)
    if (folder in rank && folder != own && module != "lib" && rank[folder] >= rank[own] + 0)
        fault = file ":" line ": " (own in rank ? own : module) " may not use " folder
    if (fault != "" && !said[fault]++) print fault
    if (!is_test) used[module] = used[module] " " path
}

function end_of_file(    rest, line, start, path, group, names, count, at) {
    if (file == "") return
    module = file
    sub(/^.*\/src\//, "", module)
    sub(/(\/mod)?\.rs$/, "", module)
    gsub(/\//, "::", module)
    path_of[module] = file
    is_test = 0
    line = 1
    rest = text
    while (match(rest, /#\[cfg\(test\)\]\n|(crate|super)::[a-zA-Z0-9_:]*[a-zA-Z0-9_]|crate::\{/)) {
        start = substr(rest, 1, RSTART - 1)
        path = substr(rest, RSTART, RLENGTH)
        rest = substr(rest, RSTART + RLENGTH)
        line += gsub(/\n/, "\n", start)
        if (path ~ /^#/) {
            is_test = 1
            line++
            continue
        }
        if (path == "crate::{") rest = "::{" rest
        group = ""
        if (match(rest, /^::\{[^{}]*\}/)) group = substr(rest, 4, RLENGTH - 4)
        if (path ~ /^super/) {
            start = module
            sub(/(::)?[^:]*$/, "", start)
            path = (start == "" ? "" : start "::") substr(path, 8)
        } else {
            sub(/^crate(::)?\{?/, "", path)
        }
        count = group == "" ? 0 : split(group, names, ",")
        if (count == 0) uses(path, line)
        for (at = 1; at <= count; at++) {
            gsub(/[ \n]/, "", names[at])
            if (names[at] != "") uses((path == "" ? "" : path "::") names[at], line)
        }
    }
    text = ""
}

FNR == 1 {
    end_of_file()
    file = FILENAME
}

{
    sub(/\/\/.*/, "")
    text = text $0 "\n"
}

END {
    end_of_file()
    for (module in path_of) {
        count = split(used[module], paths, " ")
        for (at = 1; at <= count; at++) {
            path = paths[at]
            while (path != "" && !(path in path_of)) if (!sub(/::[^:]*$/, "", path)) path = ""
            if (path != "" && path != module && folder_of(path) == folder_of(module)) reaches[module, path] = 1
        }
    }
    for (by in path_of) for (from in path_of) if ((from, by) in reaches)
        for (to in path_of) if ((by, to) in reaches) reaches[from, to] = 1
    for (module in path_of) {
        circle = ""
        count = 0
        first = module
        for (other in path_of) if ((module, other) in reaches && (other, module) in reaches) {
            count++
            circle = circle " " path_of[other]
            if (other < first) first = other
        }
        if (count > 5 && first == module) print "a circle of " count " files:" circle
    }
}
