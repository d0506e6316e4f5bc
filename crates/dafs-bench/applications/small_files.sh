#!/bin/bash
# Small files, as a server of mail has them: many are made, then each step reads one or appends to one,
# and makes one or removes one.
source "$(dirname "$0")/lib.sh"
case $1 in
input) ;;
prepare) ;;
run)
    perl -MDigest::MD5=md5_hex -e '
        my ($root, $files, $steps, $state) = (@ARGV, 7);
        sub below { $state = ($state * 1103515245 + 12345) % 2147483648; ($state >> 8) % $_[0] }
        my (%content, @names, $made);
        sub put {
            my ($name, $how, $text) = @_;
            open(my $file, $how, "$root/$name") or die "$name: $!";
            print $file $text;
            close($file) or die "$name: $!";
            $content{$name} .= $text;
        }
        sub make {
            my $name = sprintf("box%d/mail%05d", $made % 10, $made++);
            put($name, ">", "mail of $name\n" x (30 + below(500)));
            push @names, $name;
        }
        mkdir "$root/box$_" or die $! for 0 .. 9;
        make() for 1 .. $files;
        for (1 .. $steps) {
            my $name = $names[below(scalar @names)];
            if (below(2)) {
                open(my $file, "<", "$root/$name") or die "$name: $!";
                local $/;
                <$file> eq $content{$name} or die "$name holds something else";
            } else {
                put($name, ">>", "more\n" x (1 + below(200)));
            }
            if (below(2) || @names < 2) { make(); next }
            my $gone = splice(@names, below(scalar @names), 1);
            unlink("$root/$gone") or die "$gone: $!";
            delete $content{$gone};
        }
        print md5_hex($content{$_}), "  $_\n" for sort @names;
    ' "$D" "$(scaled 1000)" "$(scaled 3000)" >"$T/sums"
    ;;
check)
    (cd "$E" && md5sum --quiet -c "$T/sums") || fail "files differ"
    [[ $(find "$E" -type f | wc -l) == $(wc -l <"$T/sums") ]] || fail "there are other files"
    ;;
esac
