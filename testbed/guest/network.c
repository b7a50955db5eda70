// SPDX-License-Identifier: GPL-2.0-only
#define _GNU_SOURCE
#include "loads.h"
#include "stats.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define ECHO_PORT 7007
/* A datagram that isn't back by then is lost; the next one is sent. */
#define LOST_AFTER_S 5

int set_address(const char *address)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in *in;
	struct ifreq request = {.ifr_name = "eth0"};

	in = (struct sockaddr_in *)&request.ifr_addr;
	in->sin_family = AF_INET;
	inet_pton(AF_INET, address, &in->sin_addr);
	if (fd < 0 || ioctl(fd, SIOCSIFADDR, &request))
		return -1;
	inet_pton(AF_INET, "255.255.255.0", &in->sin_addr);
	ioctl(fd, SIOCSIFNETMASK, &request);
	request.ifr_flags = IFF_UP | IFF_RUNNING;
	leave_guest_once();
	if (ioctl(fd, SIOCSIFFLAGS, &request))
		return -1;
	close(fd);
	return 0;
}

static void ping(long argument)
{
	const char *network = getenv("NETWORK");
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct timeval patience = {.tv_sec = LOST_AFTER_S};
	struct sockaddr_in host = {.sin_family = AF_INET, .sin_port = htons(ECHO_PORT)};
	uint64_t sequence = 0;
	char address[64];

	(void)argument;
	snprintf(address, sizeof(address), "%s.1", network ? network : "127.0.0");
	inet_pton(AF_INET, address, &host.sin_addr);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (fd < 0 || connect(fd, (struct sockaddr *)&host, sizeof(host)))
		return;
	for (;;) {
		uint64_t start = now_ns(), back = 0;

		sequence++;
		leave_guest_once();
		if (send(fd, &sequence, sizeof(sequence), 0) != sizeof(sequence)) {
			usleep(100000); /* nobody serves yet */
			continue;
		}
		while (back != sequence && recv(fd, &back, sizeof(back), 0) > 0)
			;
		if (back == sequence)
			count_latency(PINGPONG, now_ns() - start);
		else
			usleep(10000);
	}
}

void load_pingpong(int count)
{
	for (int i = 0; i < count; i++)
		start_thread(ping, i, -1);
}

int serve_echo(int port)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port ? port : ECHO_PORT)};
	char data[2048];

	if (fd < 0 || bind(fd, (struct sockaddr *)&any, sizeof(any))) {
		perror("echo");
		return 1;
	}
	printf("echoing\n");
	fflush(stdout);
	for (;;) {
		struct sockaddr_in from;
		socklen_t length = sizeof(from);
		ssize_t n = recvfrom(fd, data, sizeof(data), 0, (struct sockaddr *)&from, &length);

		if (n > 0)
			sendto(fd, data, n, 0, (struct sockaddr *)&from, length);
	}
}
