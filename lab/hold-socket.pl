#!/usr/bin/perl
# hold-socket.pl ADDRESS PORT PID_FILE COMMAND... -- run COMMAND with a listening socket that it
# takes over as from systemd (sd_listen_fds(3)), and again with the same socket whenever it has
# ended with status 0. The id of the process of the moment is in PID_FILE.
use strict;
use warnings;
use POSIX ();
use Socket;

my ($address, $port, $pid_file, @command) = @ARGV;
# So that exec leaves it open.
$^F = 3;
socket(my $listener, PF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
setsockopt($listener, SOL_SOCKET, SO_REUSEADDR, 1) or die "SO_REUSEADDR: $!\n";
bind($listener, sockaddr_in($port, inet_aton($address))) or die "bind: $!\n";
listen($listener, 64) or die "listen: $!\n";
fileno($listener) == 3 or POSIX::dup2(fileno($listener), 3) or die "dup2: $!\n";

while (1) {
    my $pid = fork // die "fork: $!\n";
    if ($pid == 0) {
        @ENV{qw(LISTEN_PID LISTEN_FDS)} = ($$, 1);
        exec @command or die "exec: $!\n";
    }
    open(my $file, '>', "$pid_file.new") or die "$pid_file.new: $!\n";
    print $file "$pid\n";
    close($file) && rename("$pid_file.new", $pid_file) or die "$pid_file: $!\n";
    waitpid($pid, 0);
    exit 1 if $? != 0;
}
