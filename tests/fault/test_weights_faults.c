/* SPDX-License-Identifier: Apache-2.0
 *
 * test_weights_faults.c - disks that are full, files that shrink while they are read, ranks that
 * fail alone or die: an error on every rank that names rank and path, and the old weights intact.
 */
#include "unit/weights_model.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cmocka.h>

/* ---- reads that fail ------------------------------------------------------------------------- */

enum { NEVER = -1 };

/* The reading thread's calls until one fails; then the file has ended, or the disk is broken. */
static _Thread_local int reads_left = NEVER;
static _Thread_local bool is_cut;

ssize_t pread(int fd, void *out, size_t n_bytes, off_t offset) {
    if (reads_left != NEVER && reads_left-- == 0) {
        reads_left = NEVER;
        errno = EIO;
        return is_cut ? 0 : -1;
    }
    return syscall(SYS_pread64, fd, out, n_bytes, offset);
}

/* The same of writes; the disk is full. */
static _Thread_local int writes_left = NEVER;

ssize_t pwrite(int fd, const void *data, size_t n_bytes, off_t offset) {
    if (writes_left != NEVER && writes_left-- == 0) {
        writes_left = NEVER;
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_pwrite64, fd, data, n_bytes, offset);
}

typedef struct path {
    char text[128];
} path;

static path path_to(const char *name) {
    path p;
    snprintf(p.text, sizeof p.text, "%s/%s", scratch, name);
    return p;
}

static void save(hp_world *world, void *argument) {
    const hp_weights_config *config = argument;
    weights_model m;
    weights_create(world, 1, 1, &m);
    RANK_OK(hp_weights_save(m.fsdp, path_to("model").text, config));
    weights_destroy(&m);
}

static void load_and_check(hp_world *world, void *argument) {
    weights_model m;
    weights_create(world, 1, 0, &m);
    RANK_OK(hp_weights_load(m.fsdp, path_to("model").text));
    weights_collect(&m, 0, argument);
    weights_destroy(&m);
}

static void expect_saved(void) {
    weights_values values;
    memset(&values, 0x55, sizeof values);
    ranks_run(1, RANKS_THREADS, load_and_check, &values);
    assert_true(weights_match(&values, HP_FP32));
}

/* Rank 1's n-th read fails. Either nothing was touched, or the fsdp is given up, on every rank. */
struct cut_load {
    int n;
    bool is_cut;
    int n_given_up, is_loaded; /* of rank 0 */
};

static void load_with_a_bad_read(hp_world *world, void *argument) {
    struct cut_load *c = argument;
    hp_error error;
    weights_model m;
    hp_shard shard;
    const bool is_bad = hp_world_rank(world) == 1;
    weights_create(world, 1, 0, &m);
    is_cut = c->is_cut;
    reads_left = is_bad ? c->n : NEVER;
    const hp_status status = hp_weights_load(m.fsdp, path_to("model").text);
    const bool was_hit = is_bad && reads_left == NEVER;
    reads_left = NEVER;
    hp_last_error_get(&error);
    RANK_CHECK(!was_hit || status < 0);
    if (status < 0) {
        RANK_CHECK(status == (c->is_cut ? HP_ERR_FORMAT : HP_ERR_FILE));
        RANK_CHECK(error.world_rank == 1 && strstr(error.message, "rank 1: "));
        RANK_CHECK(strstr(error.message, "/model/model"));
    }
    const hp_status begun = hp_fsdp_begin(m.fsdp, HP_EVALUATE);
    RANK_CHECK(begun == HP_OK || (begun == HP_ERR_FAILED && status < 0));
    if (begun == HP_OK) {
        RANK_OK(hp_fsdp_end(m.fsdp));
        RANK_OK(hp_param_shard(m.unit, 2, &shard));
        RANK_CHECK(status == HP_OK || ((const float *)shard.values)[0] == 0);
    }
    if (hp_world_rank(world) == 0) {
        c->n_given_up += begun == HP_ERR_FAILED;
        c->is_loaded = status == HP_OK;
    }
    weights_destroy(&m);
}

static void a_read_that_fails_is_told_on_all_ranks(void **state) {
    (void)state;
    hp_weights_config config = HP_WEIGHTS_CONFIG_INIT;
    config.max_file_bytes = 100;
    ranks_run(2, RANKS_THREADS, save, &config);
    for (int cut = 0; cut < 2; cut++) {
        struct cut_load c = {.is_cut = cut};
        for (; !c.is_loaded; c.n++)
            ranks_run(2, RANKS_THREADS, load_with_a_bad_read, &c);
        assert_true(c.n_given_up > 3 && c.n - c.n_given_up > 6); /* while reading, and before */
    }
}

/* Rank 1's n-th write fails; it takes part in what the ranks do together until the end. */
struct full_save {
    int n;
    bool is_saved;
};

static void save_with_a_bad_write(hp_world *world, void *argument) {
    struct full_save *f = argument;
    hp_error error;
    weights_model m;
    hp_weights_config config = HP_WEIGHTS_CONFIG_INIT;
    config.max_file_bytes = 100;
    weights_create(world, 1, 0, &m);
    writes_left = hp_world_rank(world) == 1 ? f->n : NEVER;
    const hp_status status = hp_weights_save(m.fsdp, path_to("model").text, &config);
    writes_left = NEVER;
    hp_last_error_get(&error);
    RANK_CHECK(status == HP_OK || status == HP_ERR_FILE);
    if (status < 0)
        RANK_CHECK(error.world_rank == 1 && strstr(error.message, "rank 1: ") &&
                   strstr(error.message, ".safetensors") &&
                   strstr(error.message, strerror(ENOSPC)));
    if (hp_world_rank(world) == 0)
        f->is_saved = status == HP_OK;
    weights_destroy(&m);
}

static void a_write_that_fails_is_told_on_all_ranks(void **state) {
    (void)state;
    struct full_save f = {0};
    ranks_run(2, RANKS_THREADS, save, NULL);
    for (; !f.is_saved; f.n++) {
        expect_saved();
        assert_int_equal(scratch_count_hidden(), 0);
        ranks_run(2, RANKS_THREADS, save_with_a_bad_write, &f);
    }
    assert_true(f.n > 3); /* shards of w, double, ids and half */
}

/* ---- a rank that fails alone ----------------------------------------------------------------- */

static void one_rank_elsewhere(hp_world *world, void *argument) {
    (void)argument;
    hp_error error;
    weights_model m;
    const bool is_odd = hp_world_rank(world) == 2;
    const path usual = path_to("model");
    weights_create(world, 1, 1, &m);
    RANK_OK(hp_weights_save(m.fsdp, usual.text, NULL));
    RANK_FAILS(hp_weights_save(m.fsdp, is_odd ? "/nowhere/model" : usual.text, NULL), HP_ERR_FILE);
    hp_last_error_get(&error);
    RANK_CHECK(error.world_rank == 2 && strstr(error.message, "rank 2: "));
    RANK_CHECK(strstr(error.message, "/nowhere/.model.tmp-") &&
               strstr(error.message, "/model.safetensors"));
    RANK_FAILS(hp_weights_load(m.fsdp, is_odd ? "/nowhere/model" : usual.text), HP_ERR_FILE);
    hp_last_error_get(&error);
    RANK_CHECK(error.world_rank == 2 && strstr(error.message, "/nowhere/model"));
    RANK_OK(hp_weights_load(m.fsdp, usual.text));
    weights_destroy(&m);
}

static void one_rank_that_fails_fails_all(void **state) {
    (void)state;
    ranks_run(3, RANKS_THREADS, one_rank_elsewhere, NULL);
    assert_int_equal(scratch_count_hidden(), 0);
    expect_saved();
}

static void one_dies(hp_world *world, void *argument) {
    (void)argument;
    weights_model m;
    weights_create(world, 1, 1, &m);
    RANK_OK(hp_weights_save(m.fsdp, path_to("model").text, NULL));
    if (hp_world_rank(world) == 2)
        ranks_die();
    RANK_FAILS(hp_weights_save(m.fsdp, path_to("model").text, NULL), HP_ERR_PEER);
    weights_destroy(&m);
}

static void a_rank_that_dies_is_told_and_the_old_ones_stay(void **state) {
    (void)state;
    int status;
    const pid_t child = fork(); /* a world given up is never freed: let it be a child's */
    assert_true(child >= 0);
    if (child == 0) {
        char text[256];
        _exit(ranks_try(3, RANKS_THREADS, one_dies, NULL, text, sizeof text));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    expect_saved();
}

/* ---- places that cannot be written ----------------------------------------------------------- */

typedef struct refusal {
    const char *name; /* in the scratch directory, or absolute */
    const char *says[2];
} refusal;

static void save_refused(hp_world *world, void *argument) {
    const refusal *r = argument;
    weights_model m;
    const path p = path_to(r->name);
    weights_create(world, 1, 1, &m);
    RANK_FAILS(hp_weights_save(m.fsdp, *r->name == '/' ? r->name : p.text, NULL), HP_ERR_FILE);
    RANK_CHECK(strstr(hp_last_error(), "rank 0: "));
    RANK_CHECK(strstr(hp_last_error(), r->says[0]) && strstr(hp_last_error(), r->says[1]));
    weights_destroy(&m);
}

static void places_that_are_no_directory_of_weights(void **state) {
    (void)state;
    static const refusal refusals[] = {
        {"tricky", {"expected a file or nothing at ", "/tricky/model.safetensors, found a dir"}},
        {"file", {"/file to be a directory", "it is a file"}},
        {"none/model", {"/none, the directory in which model is or will be", "No such file"}},
        {"/", {"a directory that can be replaced", "/"}},
        {"/proc/model", {"/proc/.model.tmp-", "expected to make directory"}},
    };
    mkdir(scratch_path("tricky"), 0755);
    scratch_write("tricky/notes", "x");
    mkdir(scratch_path("tricky/model.safetensors"), 0755);
    scratch_write("tricky/model.safetensors/precious", "x");
    scratch_write("file", "x");
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        ranks_run(2, RANKS_THREADS, save_refused, (void *)(uintptr_t)&refusals[i]);
    assert_true(scratch_has("tricky/notes") && scratch_has("tricky/model.safetensors/precious"));
    assert_int_equal(scratch_count_hidden(), 0);
}

/* What a kill left is removed by the next save, and what only looks like it is not. */
static void leftovers_are_removed(void **state) {
    (void)state;
    static const char *const ours[] = {".model.tmp-0123456789abcdef",
                                       ".model.old-00000000000000aa"};
    static const char *const others[] = {
        ".model.tmp-0123456789abcde", ".model.tmp-0123456789abcdef0", ".model.tmq-0123456789abcdef",
        ".modex.tmp-0123456789abcdef"};
    char name[64];
    for (size_t i = 0; i < 2; i++) {
        mkdir(scratch_path(ours[i]), 0755);
        snprintf(name, sizeof name, "%s/model.safetensors", ours[i]);
        scratch_write(name, "left");
    }
    for (size_t i = 0; i < 4; i++)
        mkdir(scratch_path(others[i]), 0755);
    mkdir(scratch_path("model"), 0755);
    ranks_run(1, RANKS_THREADS, save, NULL);
    assert_int_equal(scratch_count_hidden(), 4);
    for (size_t i = 0; i < 4; i++)
        assert_true(scratch_has(others[i]));
    expect_saved();
}

static void save_under_limit(hp_world *world, void *argument) {
    const struct rlimit *limits = argument; /* {tight, usual} */
    const bool is_first = hp_world_rank(world) == 0;
    weights_model m;
    weights_create(world, 1, 0, &m);
    if (is_first)
        RANK_CHECK(setrlimit(RLIMIT_FSIZE, &limits[0]) == 0);
    RANK_OK(hp_barrier(hp_world_group(world)));
    const hp_status status = hp_weights_save(m.fsdp, path_to("model").text, NULL);
    RANK_OK(hp_barrier(hp_world_group(world)));
    if (is_first)
        RANK_CHECK(setrlimit(RLIMIT_FSIZE, &limits[1]) == 0);
    RANK_CHECK(status == HP_ERR_FILE);
    RANK_CHECK(strstr(hp_last_error(), "rank ") && strstr(hp_last_error(), "model.safetensors"));
    RANK_CHECK(strstr(hp_last_error(), strerror(EFBIG)));
    weights_destroy(&m);
}

static void a_file_limit_leaves_the_old_ones(void **state) {
    (void)state;
    struct rlimit limits[2];
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limits[1]), 0);
    ranks_run(1, RANKS_THREADS, save, NULL);
    for (rlim_t most = 1; most < 700; most += 300) {
        limits[0] = limits[1];
        limits[0].rlim_cur = most;
        ranks_run(2, RANKS_THREADS, save_under_limit, limits);
        assert_int_equal(scratch_count_hidden(), 0);
    }
    signal(SIGXFSZ, before);
    expect_saved();
}

/* Take all that the disk has left. */
static void fill_disk(void) {
    char page[4096] = {1};
    const int fd = open(scratch_path("filler"), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    assert_true(fd >= 0);
    while (write(fd, page, sizeof page) == (ssize_t)sizeof page) {
    }
    close(fd);
}

static void a_full_or_read_only_disk_leaves_the_old_ones(void **state) {
    (void)state;
    if (mount("none", scratch, "tmpfs", 0, "size=256k") != 0) {
        print_message("needs root to mount a small disk: %s\n", strerror(errno));
        skip();
    }
    ranks_run(2, RANKS_THREADS, save, NULL);
    fill_disk();
    refusal full = {"model", {".safetensors", strerror(ENOSPC)}};
    ranks_run(2, RANKS_THREADS, save_refused, &full);
    assert_int_equal(scratch_count_hidden(), 0);
    expect_saved();
    unlink(scratch_path("filler"));
    assert_int_equal(mount("none", scratch, "tmpfs", MS_REMOUNT | MS_RDONLY, NULL), 0);
    refusal read_only = {"model", {"/.model.tmp-", strerror(EROFS)}};
    ranks_run(2, RANKS_THREADS, save_refused, &read_only);
    expect_saved();
    assert_int_equal(umount(scratch), 0);
}

static int unmount_and_remove(void **state) {
    while (umount2(scratch, MNT_DETACH) == 0) { /* a test that failed half-way leaves its disk */
    }
    return scratch_remove(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_make, unmount_and_remove)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_read_that_fails_is_told_on_all_ranks),
        TEST(a_write_that_fails_is_told_on_all_ranks),
        TEST(one_rank_that_fails_fails_all),
        TEST(a_rank_that_dies_is_told_and_the_old_ones_stay),
        TEST(places_that_are_no_directory_of_weights),
        TEST(leftovers_are_removed),
        TEST(a_file_limit_leaves_the_old_ones),
        TEST(a_full_or_read_only_disk_leaves_the_old_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
