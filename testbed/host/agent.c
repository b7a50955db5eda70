// SPDX-License-Identifier: GPL-2.0-only
/*
 * The testbed's hand inside a machine: runs commands that the harness sends and streams back what they say.
 *
 * On the emulated host it is the init process and talks over a virtio-serial port; on a real host (`demo
 * --here`) it is a child of the harness and talks over its standard input and output. Where the emulated host
 * has a system installed (ROOT_DISK), it makes way for that system's own init, and comes back as its service.
 * When the other end goes away, for whatever reason, everything that it started is killed.
 *
 * An emulated host without virtio devices (SERIAL_LINE) has a serial line instead, whose UART drops what
 * comes while it is full. So the harness waits there until the agent has said that it took what was sent. The
 * most of that host's root comes as an archive on its disk.
 *
 * Frames, both directions: length, stream, kind (three little-endian 32-bit words), then `length` bytes.
 *   harness -> agent  X run this shell command   I input for it   C end of input
 *                     K send it this signal (a word)   Q end everything
 *   agent -> harness  H ready   O output   E error output   S ended (a word: exit status as waitpid gives it)
 *                     T took so many bytes (a word; on a serial line only)
 * A stream is one command; its number is the harness's choice.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define PORT_NAME "microslice.control"
/* Of the kernel's command line, and of our own as a service. */
#define ROOT_DISK "microslice.root-disk"
#define SERIAL_LINE "microslice.serial-line"
#define AS_SERVICE "--service"
#define MAX_COMMANDS 64
#define MAX_FRAME (1 << 20)

struct frame {
	uint32_t length, stream, kind;
};

struct command {
	pid_t pid; /* 0: this slot is free */
	uint32_t stream;
	int in, out, err; /* -1: closed */
};

static struct command commands[MAX_COMMANDS];
static int from_harness = STDIN_FILENO, to_harness = STDOUT_FILENO;
static int is_serial;

static void die_with_everything(const char *why)
{
	fprintf(stderr, "agent: %s\n", why);
	for (int i = 0; i < MAX_COMMANDS; i++)
		if (commands[i].pid)
			kill(-commands[i].pid, SIGKILL);
	if (getpid() == 1) {
		sync();
		reboot(RB_POWER_OFF);
	}
	exit(1);
}

static void write_all(int fd, const void *data, size_t length)
{
	while (length) {
		ssize_t n = write(fd, data, length);

		if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
			struct pollfd ready = {.fd = fd, .events = POLLOUT};

			poll(&ready, 1, 100);
			continue;
		}
		if (n <= 0)
			return; /* the reader is gone; its end is noticed where it is waited for */
		data = (const char *)data + n;
		length -= n;
	}
}

static void tell(uint32_t stream, char kind, const void *data, uint32_t length)
{
	struct frame frame = {.length = length, .stream = stream, .kind = kind};

	write_all(to_harness, &frame, sizeof(frame));
	write_all(to_harness, data, length);
}

static void read_all(int fd, void *data, size_t length)
{
	while (length) {
		ssize_t n = read(fd, data, length);

		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (n <= 0)
			die_with_everything("the harness is gone");
		if (is_serial)
			tell(0, 'T', &(uint32_t){n}, sizeof(uint32_t));
		data = (char *)data + n;
		length -= n;
	}
}

static struct command *find(uint32_t stream)
{
	for (int i = 0; i < MAX_COMMANDS; i++)
		if (commands[i].pid && commands[i].stream == stream)
			return &commands[i];
	return NULL;
}

static void close_once(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void become(const char *shell_command, int in, int out, int err)
{
	sigset_t none;

	setsid();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	dup2(in, STDIN_FILENO);
	dup2(out, STDOUT_FILENO);
	dup2(err, STDERR_FILENO);
	execl("/bin/sh", "sh", "-c", shell_command, (char *)NULL);
	_exit(127);
}

static void start(uint32_t stream, const char *shell_command)
{
	int in[2], out[2], err[2];
	struct command *command = NULL;
	uint32_t refused = 126 << 8;

	for (int i = 0; i < MAX_COMMANDS && !command; i++)
		if (!commands[i].pid)
			command = &commands[i];
	if (!command || pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)) {
		tell(stream, 'E', "agent: too many commands at once\n", 33);
		tell(stream, 'S', &refused, sizeof(refused));
		return;
	}
	command->pid = fork();
	if (command->pid == 0)
		become(shell_command, in[0], out[1], err[1]);
	close(in[0]);
	close(out[1]);
	close(err[1]);
	command->stream = stream;
	command->in = in[1];
	command->out = out[0];
	command->err = err[0];
	fcntl(command->out, F_SETFL, O_NONBLOCK);
	fcntl(command->err, F_SETFL, O_NONBLOCK);
	if (command->pid < 0) {
		command->pid = 0;
		tell(stream, 'S', &refused, sizeof(refused));
	}
}

/* Passes on what there is; false once the pipe has nothing (more) to say. */
static int forward(struct command *command, int *fd, char kind)
{
	char data[16384];
	ssize_t n;

	if (*fd < 0)
		return 0;
	n = read(*fd, data, sizeof(data));
	if (n > 0) {
		tell(command->stream, kind, data, n);
		return 1;
	}
	if (n == 0 || (errno != EAGAIN && errno != EINTR))
		close_once(fd);
	return 0;
}

/*
 * Children that ended. Output that they left in the pipes goes first; a daemon that holds a pipe open is not
 * awaited.
 */
static void reap(void)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		for (int i = 0; i < MAX_COMMANDS; i++) {
			struct command *command = &commands[i];

			if (command->pid != pid)
				continue;
			while (forward(command, &command->out, 'O'))
				;
			while (forward(command, &command->err, 'E'))
				;
			tell(command->stream, 'S', &status, sizeof(status));
			close_once(&command->in);
			close_once(&command->out);
			close_once(&command->err);
			command->pid = 0;
		}
	}
}

static void obey(void)
{
	static char data[MAX_FRAME + 1];
	struct command *command;
	struct frame frame;

	read_all(from_harness, &frame, sizeof(frame));
	if (frame.length > MAX_FRAME)
		die_with_everything("a frame too long to be one");
	read_all(from_harness, data, frame.length);
	data[frame.length] = 0;
	if (frame.kind == 'X') {
		start(frame.stream, data);
		return;
	}
	if (frame.kind == 'Q')
		die_with_everything("asked to end");
	command = find(frame.stream);
	if (!command)
		return; /* it ended before this reached it */
	if (frame.kind == 'I' && command->in >= 0)
		write_all(command->in, data, frame.length);
	else if (frame.kind == 'C')
		close_once(&command->in);
	else if (frame.kind == 'K' && frame.length == sizeof(uint32_t))
		kill(-command->pid, *(uint32_t *)data);
}

static void serve(void)
{
	struct pollfd waits[2 + 2 * MAX_COMMANDS];
	struct signalfd_siginfo info;
	sigset_t child;
	int ended;

	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, NULL);
	ended = signalfd(-1, &child, SFD_NONBLOCK | SFD_CLOEXEC);
	tell(0, 'H', "", 0);
	for (;;) {
		int count = 0;

		waits[count++] = (struct pollfd){.fd = from_harness, .events = POLLIN};
		waits[count++] = (struct pollfd){.fd = ended, .events = POLLIN};
		for (int i = 0; i < MAX_COMMANDS; i++) {
			int open = commands[i].pid != 0;

			waits[count++] = (struct pollfd){.fd = open ? commands[i].out : -1, .events = POLLIN};
			waits[count++] = (struct pollfd){.fd = open ? commands[i].err : -1, .events = POLLIN};
		}
		if (poll(waits, count, 1000) < 0 && errno != EINTR)
			die_with_everything("poll failed");
		for (int i = 0; i < MAX_COMMANDS; i++) {
			if (waits[2 + 2 * i].revents)
				forward(&commands[i], &commands[i].out, 'O');
			if (waits[3 + 2 * i].revents)
				forward(&commands[i], &commands[i].err, 'E');
		}
		while (read(ended, &info, sizeof(info)) > 0)
			;
		reap();
		if (waits[0].revents & POLLIN)
			obey();
		else if (waits[0].revents & (POLLHUP | POLLERR))
			die_with_everything("the harness is gone");
	}
}

/* What follows makes a machine of a bare kernel. */

/* The emulated Intel CPU refuses every entry with what KVM sets up for virtual interrupt delivery. */
static const char *arguments_of(const char *module)
{
	return strstr(module, "kvm-intel.ko") ? "enable_apicv=0" : "";
}

static void load_modules(void)
{
	struct dirent **files;
	int count =
	    scandir("/modules", &files, NULL, alphasort); /* numbered in the order of their dependencies */

	for (int i = 0; i < count; i++) {
		char path[512];
		int fd;

		if (files[i]->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/modules/%s", files[i]->d_name);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0 || (syscall(SYS_finit_module, fd, arguments_of(path), 0) && errno != EEXIST))
			fprintf(stderr, "agent: %s: %s\n", path, strerror(errno));
		close(fd);
	}
}

static int open_port(void)
{
	for (int tries = 0; tries < 600; tries++, usleep(50000)) {
		DIR *ports = opendir("/sys/class/virtio-ports");
		struct dirent *port;

		while (ports && (port = readdir(ports))) {
			char path[512], name[64] = "";
			FILE *file;
			int fd;

			snprintf(path, sizeof(path), "/sys/class/virtio-ports/%s/name", port->d_name);
			file = fopen(path, "re");
			if (!file)
				continue;
			if (!fgets(name, sizeof(name), file))
				name[0] = 0;
			fclose(file);
			if (strncmp(name, PORT_NAME, strlen(PORT_NAME)))
				continue;
			snprintf(path, sizeof(path), "/dev/%s", port->d_name);
			fd = open(path, O_RDWR | O_CLOEXEC);
			if (fd >= 0) {
				closedir(ports);
				return fd;
			}
		}
		if (ports)
			closedir(ports);
	}
	die_with_everything("no virtio port named " PORT_NAME);
	return -1;
}

static int open_serial_line(void)
{
	int fd = open("/dev/ttyS1", O_RDWR | O_NOCTTY | O_CLOEXEC);
	struct termios line;

	if (fd < 0 || tcgetattr(fd, &line))
		die_with_everything("no second serial line");
	cfmakeraw(&line);
	cfsetspeed(&line, B115200);
	line.c_cflag |= CLOCAL;
	if (tcsetattr(fd, TCSANOW, &line))
		die_with_everything("the serial line can't be set up");
	return fd;
}

/* The rest of the root, its modules, too. The disk is found while its module goes on loading. */
static void unpack_disk(void)
{
	for (int tries = 0; access("/dev/sda", R_OK); tries++, usleep(50000))
		if (tries == 600)
			die_with_everything("no disk with the rest of the root");
	if (system("cd / && cpio -idu < /dev/sda"))
		die_with_everything("the disk's archive can't be unpacked");
	load_modules();
}

static void build_machine(void)
{
	static const struct {
		const char *what, *where;
	} mounts[] = {
	    {"proc", "/proc"},
	    {"sysfs", "/sys"},
	    {"devtmpfs", "/dev"},
	    {"tmpfs", "/tmp"},
	    {"tmpfs", "/run"},
	    {"cgroup2", "/sys/fs/cgroup"},
	    {"bpf", "/sys/fs/bpf"},
	    {"debugfs", "/sys/kernel/debug"},
	    {"tracefs", "/sys/kernel/tracing"},
	};

	for (size_t i = 0; i < sizeof(mounts) / sizeof(mounts[0]); i++) {
		mkdir(mounts[i].where, 0755);
		if (mount(mounts[i].what, mounts[i].where, mounts[i].what, 0, ""))
			fprintf(stderr, "agent: mount %s: %s\n", mounts[i].where, strerror(errno));
	}
	setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
	setenv("HOME", "/root", 1);
	if (system("/bin/busybox --install -s /bin && mkdir -p /dev/pts /dev/shm && ip link set lo up"))
		fprintf(stderr, "agent: busybox failed\n");
	load_modules();
}

static int is_asked_for(const char *word)
{
	char line[4096] = "";
	FILE *file = fopen("/proc/cmdline", "re");

	if (file) {
		if (!fgets(line, sizeof(line), file))
			line[0] = 0;
		fclose(file);
	}
	return strstr(line, word) != NULL;
}

/*
 * The first disk becomes the root, what was the root until now its /testbed, and its init the first process.
 */
static void make_way(void)
{
	int tries = 0;

	mkdir("/disk", 0755);
	/* The disk is found while its module goes on loading. */
	while (mount("/dev/vda", "/disk", "ext4", 0, "")) {
		if (++tries == 600)
			die_with_everything("no disk with a root");
		usleep(50000);
	}
	mkdir("/disk/testbed", 0755);
	if (mount("/", "/disk/testbed", NULL, MS_BIND | MS_REC, NULL))
		die_with_everything("what the testbed brings can't be bound");
	if (chdir("/disk") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
		die_with_everything("the disk can't become the root");
	execl("/sbin/init", "/sbin/init", (char *)NULL);
	die_with_everything("the root has no init");
}

int main(int count, char **arguments)
{
	int is_service = count > 1 && !strcmp(arguments[1], AS_SERVICE);

	signal(SIGPIPE, SIG_IGN);
	if (getpid() == 1) {
		build_machine();
		is_serial = is_asked_for(SERIAL_LINE);
		if (is_serial)
			unpack_disk();
		if (is_asked_for(ROOT_DISK))
			make_way();
	}
	if (getpid() == 1 || is_service)
		from_harness = to_harness = is_serial ? open_serial_line() : open_port();
	serve();
}
