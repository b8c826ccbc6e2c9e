/* SPDX-License-Identifier: Apache-2.0
 *
 * report.c - what a launcher says when a job ends badly: who, how, and who waited for whom.
 *
 * The waits are read from the control blocks, which live on when their rank is dead. A wait that
 * the death of a peer ends lasts a fraction of a second, so the launcher looks again and again
 * during the moment that it leaves to the survivors, and the first wait that it sees is kept.
 */
#include "launch.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

void hpi_say(const hpi_launcher *l, const char *format, ...) {
    char line[512];
    va_list arguments;
    if (!l->config->say)
        return;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    l->config->say(l->config->say_context, line);
}

int hpi_child_exit(const hpi_child *child) {
    return child->code == CLD_EXITED ? child->value : 128 + child->value;
}

uint64_t hpi_oom_kills(void) {
    FILE *file = fopen("/proc/vmstat", "re");
    char line[128];
    uint64_t n = 0;
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "oom_kill ", 9))
            n = strtoull(line + 9, NULL, 10);
    if (file)
        fclose(file);
    return n;
}

/* "was killed by SIGKILL (out of memory ...)", "ended with status 3" */
static void how_it_ended(const hpi_launcher *l, const hpi_child *c, char *text, size_t size) {
    if (c->code == CLD_EXITED) {
        snprintf(text, size, "ended with status %d", c->value);
        return;
    }
    const char *name = sigabbrev_np(c->value);
    const bool is_oom = c->value == SIGKILL && hpi_oom_kills() > l->n_oom_kills;
    snprintf(text, size, "was killed by SIG%s%s", name ? name : "?",
             is_oom ? " (out of memory: the kernel's count of such kills rose)" : "");
}

void hpi_report_look(hpi_launcher *l) {
    for (int i = 0; !l->hosts && i < l->n_children; i++) {
        hpi_child *c = &l->children[i];
        if (!c->was_waiting)
            c->was_waiting = hpi_control_describe(c->control, c->doing, sizeof c->doing);
    }
}

void hpi_report_first(const hpi_launcher *l) {
    char how[128];
    const hpi_child *c = &l->children[l->first];
    how_it_ended(l, c, how, sizeof how);
    if (l->hosts)
        hpi_say(l, "mpirun (pid %d) %s", (int)c->pid, how);
    else
        hpi_say(l, "rank %d (pid %d) %s", l->first, (int)c->pid, how);
}

static void report_rank(hpi_launcher *l, int rank) {
    char how[160] = "";
    hpi_child *c = &l->children[rank];
    if (!c->was_waiting && c->has_ended && c->value)
        c->was_waiting = hpi_control_describe_failure(c->control, c->doing, sizeof c->doing);
    if (c->has_ended) {
        char end[128];
        how_it_ended(l, c, end, sizeof end);
        snprintf(how, sizeof how, "; it %s", end);
    } else if (hpi_process_is_stopped((int)c->pid))
        snprintf(how, sizeof how, "; it is stopped (SIGSTOP or a debugger)");
    hpi_say(l, "rank %d was %s%s", rank, c->doing, how);
}

/* A rank that waited for nobody and ended as the first one did, of the same wrong option perhaps.
 */
static bool ended_alike(const hpi_launcher *l, int rank) {
    const hpi_child *c = &l->children[rank], *first = &l->children[l->first];
    return !c->was_waiting && c->has_ended && c->code == CLD_EXITED && c->code == first->code &&
           c->value == first->value;
}

void hpi_report_others(hpi_launcher *l) {
    int n_alike = 0;
    for (int i = 0; i < l->n_children; i++) {
        if (i != l->first && ended_alike(l, i))
            n_alike++;
        else if (i != l->first)
            report_rank(l, i);
    }
    if (n_alike)
        hpi_say(l, "so did %d other rank%s, waiting for nobody", n_alike, n_alike == 1 ? "" : "s");
}

void hpi_report_late(hpi_launcher *l) {
    hpi_say(l, "the job did not end within its deadline of %llu ms",
            (unsigned long long)l->config->deadline_ms);
    const int n = l->children && !l->hosts ? l->n_children : 0; /* in a pause there are none */
    for (int i = 0; i < n; i++)
        report_rank(l, i);
}

void hpi_report_silent(const hpi_launcher *l) {
    const hpi_host *host = hpi_hosts_silent(l->hosts);
    hpi_say(l, "host %s has not answered for %d s: the job is ended", host->name,
            HPI_HOST_PATIENCE_MS / 1000);
}
