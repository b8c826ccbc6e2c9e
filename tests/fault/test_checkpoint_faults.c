/* SPDX-License-Identifier: Apache-2.0
 *
 * test_checkpoint_faults.c - damage, full disks and kills: an error that names the file, nothing
 * lost.
 *
 * Weights after a refused load are those from before; after a failed or killed save the checkpoint
 * from before loads. The killed process saves as fast as it can, so that a kill at a random moment
 * falls into a save.
 */
#include "unit/scratch.h"
#include "unit/varied_training.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cmocka.h>

/* ---- damage ---------------------------------------------------------------------------------- */

static void save_once(hp_world *world, void *argument) {
    (void)argument;
    varied m;
    hp_optimizer *o;
    training_make(world, &m, &o);
    training_run(&m, o, 0, 2);
    RANK_OK(hp_checkpoint_save(m.fsdp, o, scratch, 1));
    training_drop(&m, o);
}

/* One way to damage a file of the checkpoint; undone after the load. */
typedef struct damage {
    const char *file;
    long at;       /* byte to flip; -1: none */
    long truncate; /* to so many bytes; -1: not */
    int is_removed;
    uint64_t n_refused;
} damage;

static long size_of(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 ? (long)about.st_size : -1;
}

static void flip(const char *path, long at) {
    unsigned char byte;
    const int fd = open(path, O_RDWR);
    RANK_CHECK(fd >= 0);
    RANK_CHECK(pread(fd, &byte, 1, at) == 1);
    byte ^= (unsigned char)(1U << (at % 8));
    RANK_CHECK(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

/* Load it; it must be refused with the file's name, or else be what was saved. */
static void load_damaged(varied *m, hp_optimizer *o, const varied_values *good, damage *d) {
    varied_values *before = calloc(2, sizeof *before);
    RANK_CHECK(before != NULL);
    uint64_t step = 99;
    varied_collect(m, VARIED_WEIGHTS, before);
    const hp_status status = hp_checkpoint_load(m->fsdp, o, scratch, &step);
    varied_collect(m, VARIED_WEIGHTS, before + 1);
    if (status < 0) {
        RANK_CHECK(status == HP_ERR_FORMAT || status == HP_ERR_FILE);
        RANK_CHECK(strstr(hp_last_error(), d->file) != NULL);
        RANK_CHECK(step == 99 && memcmp(before, before + 1, sizeof *before) == 0);
        d->n_refused++;
    } else {
        RANK_CHECK(step == 1 && memcmp(good, before + 1, sizeof *good) == 0);
        training_run(m, o, 3, 4); /* so that the next load has something to change */
    }
    free(before);
}

static void damage_all(hp_world *world, void *argument) {
    static const char *const files[] = {"step-00000001/index.json",
                                        "step-00000001/model-00001-of-00002.safetensors",
                                        "step-00000001/optimizer-00000-of-00002.safetensors"};
    varied_values *good = calloc(1, sizeof *good);
    (void)argument;
    varied m;
    hp_optimizer *o;
    training_make(world, &m, &o);
    RANK_OK(hp_checkpoint_load(m.fsdp, o, scratch, NULL));
    varied_collect(&m, VARIED_WEIGHTS, good);
    training_run(&m, o, 2, 3);
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        char path[256], aside[256];
        snprintf(path, sizeof path, "%s/%s", scratch, files[f]);
        snprintf(aside, sizeof aside, "%s.aside", path);
        damage d = {.file = strrchr(files[f], '/') + 1};
        const long n = size_of(path), n_flips = 150;
        for (long k = 0; k < n_flips; k++) {
            flip(path, k * n / n_flips);
            load_damaged(&m, o, good, &d);
            flip(path, k * n / n_flips);
        }
        RANK_CHECK(d.n_refused >= (uint64_t)n_flips / 2); /* spaces in a header may flip */
        RANK_CHECK(rename(path, aside) == 0);
        load_damaged(&m, o, good, &d); /* missing */
        d.n_refused = 0;
        for (int cut = 0; cut < 4; cut++) { /* empty, short, half, one byte less */
            char command[640];
            snprintf(command, sizeof command, "cp %s %s", aside, path);
            RANK_CHECK(system(command) == 0);
            RANK_CHECK(truncate(path, cut == 0 ? 0 : cut == 1 ? 7 : cut == 2 ? n / 2 : n - 1) == 0);
            load_damaged(&m, o, good, &d);
        }
        RANK_CHECK(d.n_refused == 4);
        RANK_CHECK(rename(aside, path) == 0);
    }
    RANK_OK(hp_checkpoint_load(m.fsdp, o, scratch, NULL)); /* all is as it was */
    free(good);
    training_drop(&m, o);
}

static void damage_is_refused_and_nothing_changes(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, save_once, NULL);
    ranks_run(1, RANKS_THREADS, damage_all, NULL);
}

/* Two ranks: the one that sees no damage in its files fails too. */
static void load_half_damaged(hp_world *world, void *argument) {
    (void)argument;
    varied m;
    hp_optimizer *o;
    hp_error error;
    training_make(world, &m, &o);
    RANK_FAILS(hp_checkpoint_load(m.fsdp, o, scratch, NULL), HP_ERR_FORMAT);
    hp_last_error_get(&error);
    RANK_CHECK(error.world_rank == 1 && strstr(error.message, "rank 1: "));
    RANK_CHECK(strstr(error.message, "optimizer-00001-of-00002.safetensors: tensor \"exp_avg"));
    RANK_FAILS(hp_optimizer_step(o, 0.1), HP_ERR_STATE);
    training_drop(&m, o);
}

static void damage_on_one_rank_fails_all(void **state) {
    (void)state;
    ranks_run(2, RANKS_THREADS, save_once, NULL);
    const char *path = scratch_path("step-00000001/optimizer-00001-of-00002.safetensors");
    const long last = size_of(path) - 1;
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pwrite(fd, "\x7f", 1, last) == 1);
    close(fd);
    ranks_run(2, RANKS_THREADS, load_half_damaged, NULL);
}

/* ---- a disk that is full, a directory that is read-only -------------------------------------- */

/* Save step 1; then, under a limit that only rank 0 sets and lifts, fail to save step 2. */
static void save_under_limit(hp_world *world, void *argument) {
    const struct rlimit *limits = argument; /* {tight, usual} */
    const bool is_first = hp_world_rank(world) == 0;
    varied m;
    hp_optimizer *o;
    uint64_t step = 0;
    training_make(world, &m, &o);
    training_run(&m, o, 0, 1);
    RANK_OK(hp_checkpoint_save(m.fsdp, o, scratch, 1));
    RANK_OK(hp_barrier(hp_world_group(world)));
    if (is_first)
        RANK_CHECK(setrlimit(RLIMIT_FSIZE, &limits[0]) == 0);
    RANK_OK(hp_barrier(hp_world_group(world)));
    const hp_status status = hp_checkpoint_save(m.fsdp, o, scratch, 2);
    RANK_OK(hp_barrier(hp_world_group(world)));
    if (is_first)
        RANK_CHECK(setrlimit(RLIMIT_FSIZE, &limits[1]) == 0);
    RANK_CHECK(status == HP_ERR_FILE);
    RANK_CHECK(strstr(hp_last_error(), "rank ") && strstr(hp_last_error(), ".safetensors"));
    RANK_CHECK(strstr(hp_last_error(), strerror(EFBIG)));
    RANK_OK(hp_checkpoint_load(m.fsdp, o, scratch, &step));
    RANK_CHECK(step == 1);
    RANK_OK(hp_barrier(hp_world_group(world)));
    RANK_OK(hp_checkpoint_save(m.fsdp, o, scratch, 2));
    training_drop(&m, o);
}

static void a_file_limit_leaves_the_old_one(void **state) {
    (void)state;
    struct rlimit limits[2];
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limits[1]), 0);
    for (rlim_t most = 1; most < 2000; most += 300) {
        limits[0] = limits[1];
        limits[0].rlim_cur = most;
        ranks_run(2, RANKS_THREADS, save_under_limit, limits);
        assert_int_equal(scratch_count_hidden(), 0);
        assert_false(scratch_has("latest.tmp"));
    }
    signal(SIGXFSZ, before);
}

/* Take all that the disk has left, except for `spare` pages; returns the file's descriptor. */
static void fill_disk(int spare) {
    char page[4096] = {1};
    const int fd = open(scratch_path("filler"), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    assert_true(fd >= 0);
    long n = 0;
    while (write(fd, page, sizeof page) == (ssize_t)sizeof page)
        n++;
    assert_true(n > spare);
    assert_int_equal(ftruncate(fd, (n - spare) * (long)sizeof page), 0);
    close(fd);
}

typedef struct try_save {
    uint64_t step;
    hp_status expected;
    int error_number;
    uint64_t latest; /* that a load must give afterwards */
} try_save;

static void save_and_load(hp_world *world, void *argument) {
    const try_save *t = argument;
    varied m;
    hp_optimizer *o;
    uint64_t step = 0;
    training_make(world, &m, &o);
    RANK_CHECK(hp_checkpoint_save(m.fsdp, o, scratch, t->step) == t->expected);
    if (t->expected < 0)
        RANK_CHECK(strstr(hp_last_error(), scratch) &&
                   strstr(hp_last_error(), strerror(t->error_number)) &&
                   strstr(hp_last_error(), "rank "));
    RANK_OK(hp_checkpoint_load(m.fsdp, o, scratch, &step));
    RANK_CHECK(step == t->latest);
    training_drop(&m, o);
}

static void a_full_disk_leaves_the_old_one(void **state) {
    (void)state;
    if (mount("none", scratch, "tmpfs", 0, "size=256k") != 0) {
        print_message("needs root to mount a small disk: %s\n", strerror(errno));
        skip();
    }
    try_save good = {1, HP_OK, 0, 1};
    ranks_run(2, RANKS_THREADS, save_and_load, &good);
    for (int spare = 0; spare < 8; spare++) { /* full at each file in turn, and for none */
        fill_disk(spare);
        const bool has_room = spare > 5; /* four files of tensors, the index and latest */
        try_save full = {2, has_room ? HP_OK : HP_ERR_FILE, ENOSPC, has_room ? 2 : 1};
        ranks_run(2, RANKS_THREADS, save_and_load, &full);
        assert_int_equal(scratch_count_hidden(), 0);
        assert_false(scratch_has("latest.tmp"));
        unlink(scratch_path("filler"));
    }
    assert_int_equal(mount("none", scratch, "tmpfs", MS_REMOUNT | MS_RDONLY, NULL), 0);
    try_save read_only = {3, HP_ERR_FILE, EROFS, 2};
    ranks_run(2, RANKS_THREADS, save_and_load, &read_only);
    assert_int_equal(umount(scratch), 0);
}

/* ---- a rank that dies ------------------------------------------------------------------------ */

static void one_dies(hp_world *world, void *argument) {
    (void)argument;
    varied m;
    hp_optimizer *o;
    training_make(world, &m, &o);
    RANK_OK(hp_checkpoint_save(m.fsdp, o, scratch, 1));
    if (hp_world_rank(world) == 2)
        ranks_die();
    RANK_FAILS(hp_checkpoint_save(m.fsdp, o, scratch, 2), HP_ERR_PEER);
    training_drop(&m, o);
}

static void a_rank_that_dies_is_told_and_the_old_one_stays(void **state) {
    (void)state;
    try_save again = {3, HP_OK, 0, 3};
    int status;
    const pid_t child = fork(); /* a world given up is never freed: let it be a child's */
    assert_true(child >= 0);
    if (child == 0) {
        char text[256];
        _exit(ranks_try(3, RANKS_THREADS, one_dies, NULL, text, sizeof text));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(scratch_has("step-00000001") && !scratch_has("step-00000002"));
    ranks_run(2, RANKS_THREADS, save_and_load, &again);
    assert_int_equal(scratch_count_hidden(), 0); /* whatever the death left */
}

/* ---- kills ----------------------------------------------------------------------------------- */

/* Train and save step after step until killed; the pipe tells of the first checkpoint. */
static void save_for_ever(hp_world *world, void *argument) {
    const int *pipe_end = argument;
    varied m;
    hp_optimizer *o;
    training_make(world, &m, &o);
    for (int t = 0; t < 100000; t++) {
        RANK_OK(hp_checkpoint_save(m.fsdp, o, scratch, (uint64_t)t));
        if (t == 0 && hp_world_rank(world) == 0)
            RANK_CHECK(write(*pipe_end, "x", 1) == 1);
        training_run(&m, o, t, t + 1);
    }
    training_drop(&m, o);
}

static void run_and_kill(uint64_t after_ns) {
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char text[256];
        close(ends[0]);
        _exit(ranks_try(2, RANKS_THREADS, save_for_ever, &ends[1], text, sizeof text) != 0);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    hpi_sleep_ns(after_ns);
    kill(child, SIGKILL);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status)); /* else it ended by itself */
    close(ends[0]);
}

/* The checkpoint is that of its step: what training so far gives here. */
static void load_and_compare(hp_world *world, void *argument) {
    varied m, again;
    hp_optimizer *o, *o_again;
    uint64_t step = 0, *out_step = argument;
    varied_values *values = calloc(2, sizeof *values);
    RANK_CHECK(values != NULL);
    training_make(world, &m, &o);
    training_make(world, &again, &o_again);
    RANK_OK(hp_checkpoint_load(m.fsdp, o, scratch, &step));
    training_run(&again, o_again, 0, (int)step);
    training_run(&m, o, (int)step, (int)step + 2);
    training_run(&again, o_again, (int)step, (int)step + 2);
    varied_collect(&m, VARIED_WEIGHTS, values);
    varied_collect(&again, VARIED_WEIGHTS, values + 1);
    RANK_CHECK(memcmp(values, values + 1, sizeof *values) == 0);
    free(values);
    training_drop(&again, o_again);
    training_drop(&m, o);
    *out_step = step;
}

static void a_kill_at_any_moment_leaves_one_that_loads(void **state) {
    (void)state;
    uint64_t seed = 42, step = 0, n_hidden = 0;
    for (int i = 0; i < 8; i++) {
        run_and_kill(hpi_random_next(&seed) % 40000000);
        n_hidden += (uint64_t)scratch_count_hidden();
        ranks_run(1, RANKS_THREADS, load_and_compare, &step);
    }
    print_message("last step %d, %d hidden directories left on the way\n", (int)step,
                  (int)n_hidden);
}

static int unmount_and_remove(void **state) {
    while (umount2(scratch, MNT_DETACH) == 0) { /* a test that failed half-way leaves its disk */
    }
    return scratch_remove(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_make, unmount_and_remove)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(damage_is_refused_and_nothing_changes),
        TEST(damage_on_one_rank_fails_all),
        TEST(a_file_limit_leaves_the_old_one),
        TEST(a_full_disk_leaves_the_old_one),
        TEST(a_rank_that_dies_is_told_and_the_old_one_stays),
        TEST(a_kill_at_any_moment_leaves_one_that_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
