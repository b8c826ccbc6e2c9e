/* SPDX-License-Identifier: Apache-2.0
 *
 * process.c - what /proc says of a rank's process: its number, and whether it is stopped.
 *
 * A stopped process is alive for every other means of finding out, and explains a time-out like no
 * other. Source: proc(5), /proc/PID/stat and the Pid line of a pidfd's fdinfo.
 */
#include "../inside.h"

#include <stdio.h>
#include <stdlib.h>

bool hpi_process_is_stopped(int pid) {
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = pid > 0 ? fopen(path, "re") : NULL;
    if (!file)
        return false;
    /* the name in brackets may hold anything */
    const char *state = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
    fclose(file);
    return state && strlen(state) > 2 && (state[2] == 'T' || state[2] == 't');
}

int hpi_pidfd_pid(int pidfd) {
    char path[64], line[128];
    int pid = -1;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
    FILE *file = pidfd >= 0 ? fopen(path, "re") : NULL;
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "Pid:", 4))
            pid = atoi(line + 4);
    if (file)
        fclose(file);
    return pid;
}
