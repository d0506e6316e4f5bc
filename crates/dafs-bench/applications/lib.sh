# shellcheck shell=bash
# Sourced by the applications' scripts. Each is called with what it is to do:
#   input    make, in $W, what all runs need; once
#   prepare  what a run needs in its folder, before time is taken
#   run      the application at work in its folder, $D, the way that is measured
#   check    compare what the server has, $E, with what there should be; what runs leave for it is in $T
#
# Invariants
# * The result is the same in every run.
set -euo pipefail
: "${D:?}" "${E:?}" "${W:?}" "${T:?}" "${SCALE:?}"
export HOME=$W GIT_CONFIG_NOSYSTEM=1 LC_ALL=C

# scaled COUNT -- that many at full size, and fewer at less, but some.
scaled() {
    local count=$(($1 * SCALE / 100))
    echo $((count > 10 ? count : 10))
}

fail() {
    echo "$*" >&2
    exit 1
}

# A tree of 3000 files in 100 folders, as sources are: most small, some not.
tree() {
    [[ ! -d $W/tree ]] || return 0
    perl -e '
        my ($root, $count, $state) = (@ARGV, 1);
        sub below { $state = ($state * 1103515245 + 12345) % 2147483648; ($state >> 8) % $_[0] }
        mkdir $root;
        for my $number (0 .. $count - 1) {
            my $folder = sprintf("%s/folder%02d", $root, $number % 100);
            mkdir $folder;
            open(my $file, ">", sprintf("%s/file%05d.c", $folder, $number)) or die $!;
            my $lines = below(20) ? below(200) : below(8000);
            print $file "int value_", below(100000), " = ", below(100000), ";\n" for 0 .. $lines;
            close($file) or die $!;
        }' "$W/tree" "$(scaled 3000)"
}
