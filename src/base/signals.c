/* SPDX-License-Identifier: Apache-2.0
 *
 * base/signals.c - threads of the library take no signals.
 *
 * A signal goes to any thread that does not block it, and its handler would run in the middle of
 * what that thread does: so ours block them all, but those that a thread raises itself.
 */
#include "base.h"

#include <pthread.h>

void hpi_signals_block(sigset_t *out_before) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t most;
    sigfillset(&most);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&most, own[i]);
    pthread_sigmask(SIG_SETMASK, &most, out_before);
}
