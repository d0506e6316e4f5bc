#!/usr/bin/perl
# hold-socket.pl ADDRESS PORT[,PORT]... PID_FILE COMMAND... -- run COMMAND with listening sockets
# that it takes over as from systemd (sd_listen_fds(3)), and again with the same sockets whenever it
# has ended with status 0. The id of the process of the moment is in PID_FILE.
use strict;
use warnings;
use POSIX ();
use Socket;

my ($address, $ports, $pid_file, @command) = @ARGV;
my @ports = split /,/, $ports;
# So that exec leaves them open.
$^F = 2 + @ports;
# Open as long as this process lives, as the descriptors from 3 on.
my @listeners;
for my $port (@ports) {
    socket(my $listener, PF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
    setsockopt($listener, SOL_SOCKET, SO_REUSEADDR, 1) or die "SO_REUSEADDR: $!\n";
    bind($listener, sockaddr_in($port, inet_aton($address))) or die "bind: $!\n";
    listen($listener, 64) or die "listen: $!\n";
    push @listeners, $listener;
    my $wanted = 2 + @listeners;
    fileno($listener) == $wanted or POSIX::dup2(fileno($listener), $wanted) or die "dup2: $!\n";
}

while (1) {
    my $pid = fork // die "fork: $!\n";
    if ($pid == 0) {
        @ENV{qw(LISTEN_PID LISTEN_FDS)} = ($$, scalar @listeners);
        exec @command or die "exec: $!\n";
    }
    open(my $file, '>', "$pid_file.new") or die "$pid_file.new: $!\n";
    print $file "$pid\n";
    close($file) && rename("$pid_file.new", $pid_file) or die "$pid_file: $!\n";
    waitpid($pid, 0);
    exit 1 if $? != 0;
}
