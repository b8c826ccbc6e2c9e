/* SPDX-License-Identifier: Apache-2.0
 *
 * test_trace.c - room `trace`: recording, and the file.
 *
 * Files are read back by a strict JSON parser (below, about sixty lines) and their events walked
 * with a stack per (pid, tid): each E must close the last open B, and time must not go back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/base.h"
#include "trace/trace.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a strict JSON parser: moves `*at` over one value, false where it is not JSON ------------ */

static void skip_space(const char **at) {
    *at += strspn(*at, " \t\r\n");
}

static bool parse_string(const char **at) {
    if (*(*at)++ != '"')
        return false;
    for (; **at != '"'; (*at)++) {
        if ((unsigned char)**at < 0x20)
            return false;
        if (**at != '\\')
            continue;
        (*at)++;
        if (**at == 'u') {
            if (strspn(*at + 1, "0123456789abcdefABCDEF") < 4)
                return false;
            *at += 4;
        } else if (!**at || !strchr("\"\\/bfnrt", **at)) {
            return false;
        }
    }
    (*at)++;
    return true;
}

static bool parse_number(const char **at) {
    const char *begin = *at;
    *at += **at == '-';
    const size_t n_digits = strspn(*at, "0123456789");
    *at += n_digits;
    if (**at == '.') {
        const size_t n_decimals = strspn(*at + 1, "0123456789");
        *at += 1 + n_decimals;
        if (!n_decimals)
            return false;
    }
    return n_digits && (n_digits == 1 || begin[*begin == '-'] != '0');
}

static bool parse_value(const char **at);

static bool parse_list(const char **at, char close, bool has_keys) {
    (*at)++;
    skip_space(at);
    if (**at == close)
        return (*at)++, true;
    for (;; (*at)++) {
        skip_space(at);
        if (has_keys) {
            if (!parse_string(at))
                return false;
            skip_space(at);
            if (*(*at)++ != ':')
                return false;
        }
        if (!parse_value(at))
            return false;
        skip_space(at);
        if (**at == close)
            return (*at)++, true;
        if (**at != ',')
            return false;
    }
}

static bool parse_value(const char **at) {
    skip_space(at);
    if (**at == '{')
        return parse_list(at, '}', true);
    if (**at == '[')
        return parse_list(at, ']', false);
    return **at == '"' ? parse_string(at) : parse_number(at);
}

static bool is_json(const char *text) {
    const bool is_value = parse_value(&text);
    skip_space(&text);
    return is_value && !*text;
}

/* ---- reading a file back --------------------------------------------------------------------- */

static char folder[64], path[128];

static int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/hp-test-trace-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/trace.json", folder);
    return 0;
}

static unsigned count_files(void) {
    unsigned n = 0;
    DIR *directory = opendir(folder);
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));)
        n += entry->d_name[0] != '.';
    closedir(directory);
    return n;
}

static int remove_folder(void **state) {
    (void)state;
    if (unlink(path) != 0)
        rmdir(path);
    return rmdir(folder);
}

static char *read_file(void) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    const size_t n = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(n + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, n, file), n);
    text[n] = '\0';
    fclose(file);
    return text;
}

enum { MAX_DEPTH = 64 };
struct stack {
    uint64_t last_ns;
    uint64_t begin_ns[MAX_DEPTH]; /* of the open spans */
    int depth;
    uint64_t n_closed;
    uint64_t sum_squares; /* of the lengths: a wrong pair of begin and end would change it */
};

static uint64_t field(const char *event, const char *key) {
    const char *at = strstr(event, key);
    assert_non_null(at);
    return strtoull(at + strlen(key), NULL, 10);
}

static uint64_t time_ns(const char *event) {
    const char *point = strstr(event, "\"ts\":");
    assert_non_null(point);
    point = strchr(point, '.');
    assert_non_null(point);
    assert_int_equal(strspn(point + 1, "0123456789"), 3);
    return field(event, "\"ts\":") * 1000 + strtoull(point + 1, NULL, 10);
}

/* Walk the events, one per line; the number of closed spans of each stream is left in `stacks`. */
static void check_nesting(const char *text, uint64_t pid, struct stack stacks[HP_TRACE_STREAMS]) {
    memset(stacks, 0, HP_TRACE_STREAMS * sizeof *stacks);
    for (const char *event = text; (event = strstr(event, "{\"ph\":\"")); event++) {
        const char phase = event[7];
        assert_int_equal(field(event, "\"pid\":"), pid);
        struct stack *stack = &stacks[field(event, "\"tid\":")];
        if (phase == 'M')
            continue;
        const uint64_t now_ns = time_ns(event);
        assert_true(now_ns >= stack->last_ns);
        stack->last_ns = now_ns;
        if (phase == 'B') {
            assert_in_range(stack->depth, 0, MAX_DEPTH - 1);
            stack->begin_ns[stack->depth++] = now_ns;
        } else {
            assert_int_equal(phase, 'E');
            assert_in_range(stack->depth, 1, MAX_DEPTH);
            const uint64_t length_ns = now_ns - stack->begin_ns[--stack->depth];
            stack->sum_squares += length_ns * length_ns;
            stack->n_closed++;
        }
    }
    for (int i = 0; i < HP_TRACE_STREAMS; i++)
        assert_int_equal(stacks[i].depth, 0);
}

static hp_trace *create(int rank, uint64_t spans) {
    hp_trace *trace = NULL;
    assert_int_equal(hp_trace_create(rank, spans, &trace), HP_OK);
    return trace;
}

static void add(hp_trace *trace, unsigned stream, const char *name, uint64_t begin, uint64_t end) {
    const hp_span span = {.name = name, .begin_ns = begin, .end_ns = end, .id = UINT32_MAX};
    hp_trace_span(trace, stream, &span);
}

/* The names of the B events and an 'E' for each end, as "a b E E ". */
static void print_order(const char *text, char *order, size_t size) {
    size_t n = 0;
    order[0] = '\0';
    for (const char *event = text; (event = strstr(event, "{\"ph\":\"")); event++) {
        if (event[7] == 'E')
            n += (size_t)snprintf(order + n, size - n, "E ");
        if (event[7] != 'B')
            continue;
        const char *name = strstr(event, "\"name\":\"") + 8;
        n += (size_t)snprintf(order + n, size - n, "%.*s ", (int)strcspn(name, "\""), name);
    }
}

static void assert_written_order(const hp_trace *trace, const char *expected) {
    char order[512];
    struct stack stacks[HP_TRACE_STREAMS];
    assert_int_equal(hp_trace_write(trace, path), HP_OK);
    char *text = read_file();
    assert_true(is_json(text));
    check_nesting(text, 0, stacks);
    print_order(text, order, sizeof order);
    assert_string_equal(order, expected);
    free(text);
}

/* ---- recording ------------------------------------------------------------------------------- */

static void spans_are_kept_in_order(void **state) {
    (void)state;
    hp_trace *trace = create(3, 4);
    const uint64_t before = hpi_alloc_count();
    for (uint64_t i = 0; i < 6; i++)
        add(trace, 1, "a", i, i + 1);
    add(trace, 7, "b", 1, 2);
    add(trace, 8, "b", 1, 2);
    add(NULL, 0, "b", 1, 2);
    assert_int_equal(hpi_alloc_count(), before);
    assert_int_equal(hp_trace_count(trace, 0), 0);
    assert_int_equal(hp_trace_count(trace, 1), 4);
    assert_int_equal(hp_trace_count(trace, 7), 1);
    assert_int_equal(hp_trace_count(trace, 8), 0);
    assert_int_equal(hp_trace_dropped(trace), 3);
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(hp_trace_at(trace, 1, i)->begin_ns, i);
    assert_null(hp_trace_at(trace, 1, 4));
    assert_null(hp_trace_at(trace, 8, 0));
    hp_trace_destroy(trace);
    hp_trace_destroy(NULL);
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    hp_trace *trace = NULL;
    assert_int_equal(hp_trace_create(-1, 4, &trace), HP_ERR_ARGUMENT);
    assert_int_equal(hp_trace_create(0, 0, &trace), HP_ERR_ARGUMENT);
    assert_int_equal(hp_trace_create(0, UINT64_MAX / 2, &trace), HP_ERR_ARGUMENT);
    assert_int_equal(hp_trace_create(0, 1, NULL), HP_ERR_ARGUMENT);
    assert_null(trace);
    trace = create(0, 1);
    char name[65] = "";
    memset(name, 'x', 64);
    assert_int_equal(hp_trace_name_stream(trace, 8, "x"), HP_ERR_ARGUMENT);
    assert_int_equal(hp_trace_name_stream(trace, 0, NULL), HP_ERR_ARGUMENT);
    assert_int_equal(hp_trace_name_stream(trace, 0, name), HP_ERR_ARGUMENT);
    assert_int_equal(hp_trace_name_stream(NULL, 0, "x"), HP_ERR_ARGUMENT);
    assert_int_equal(hp_trace_name_stream(trace, 0, name + 1), HP_OK);
    assert_int_equal(hp_trace_write(trace, ""), HP_ERR_ARGUMENT);
    assert_int_equal(hp_trace_write(trace, NULL), HP_ERR_ARGUMENT);
    assert_int_equal(hp_trace_write(NULL, "x"), HP_ERR_ARGUMENT);
    char *long_path = malloc(5000);
    memset(long_path, 'x', 4999);
    long_path[4999] = '\0';
    assert_int_equal(hp_trace_write(trace, long_path), HP_ERR_ARGUMENT);
    free(long_path);
    hp_trace_destroy(trace);
}

static void creation_without_memory(void **state) {
    (void)state;
    hp_trace *trace = NULL;
    for (uint64_t n = 1; n <= 2; n++) {
        hpi_alloc_fail_after(n);
        assert_int_equal(hp_trace_create(0, 4, &trace), HP_ERR_MEMORY);
    }
    hpi_alloc_fail_after(0);
    assert_null(trace);
}

struct recording {
    hp_trace *trace;
    unsigned stream;
};

static void *record_many(void *argument) {
    const struct recording *r = argument;
    for (uint64_t i = 0; i < 2000; i++)
        add(r->trace, r->stream, "a", i, i);
    return NULL;
}

static void each_stream_has_its_thread(void **state) {
    (void)state;
    hp_trace *trace = create(0, 1500);
    pthread_t threads[4];
    struct recording recordings[4];
    for (unsigned i = 0; i < 4; i++) {
        recordings[i] = (struct recording){trace, i};
        assert_int_equal(pthread_create(&threads[i], NULL, record_many, &recordings[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(hp_trace_count(trace, i), 1500);
    assert_int_equal(hp_trace_dropped(trace), 4 * 500);
    hp_trace_destroy(trace);
}

static void events_have_names(void **state) {
    (void)state;
    assert_string_equal(hpi_span_wait, "wait");
    assert_string_equal(hpi_span_checkpoint, "checkpoint");
}

/* ---- the file -------------------------------------------------------------------------------- */

static void an_empty_trace_is_a_file(void **state) {
    (void)state;
    hp_trace *trace = create(5, 1);
    assert_int_equal(hp_trace_write(trace, path), HP_OK);
    char *text = read_file();
    assert_true(is_json(text));
    assert_non_null(strstr(text, "\"traceEvents\":["));
    assert_non_null(strstr(text, "\"name\":\"process_name\",\"args\":{\"name\":\"rank 5\"}"));
    assert_int_equal(count_files(), 1);
    free(text);
    hp_trace_destroy(trace);
}

static void fields_of_events(void **state) {
    (void)state;
    hp_trace *trace = create(2, 4);
    assert_int_equal(hp_trace_name_stream(trace, 1, "unshard"), HP_OK);
    const hp_span span = {.name = "all_gather",
                          .detail = "block.1",
                          .begin_ns = 1234567,
                          .end_ns = 2000001,
                          .bytes = 4096,
                          .id = 12,
                          .step = 7};
    hp_trace_span(trace, 1, &span);
    add(trace, 4, "step", 5, 1004);
    assert_int_equal(hp_trace_write(trace, path), HP_OK);
    char *text = read_file();
    assert_true(is_json(text));
    assert_non_null(strstr(text, "{\"ph\":\"M\",\"pid\":2,\"tid\":1,\"name\":\"thread_name\","
                                 "\"args\":{\"name\":\"unshard\"}}"));
    assert_non_null(
        strstr(text, "\"tid\":4,\"name\":\"thread_name\",\"args\":{\"name\":\"stream 4\"}}"));
    assert_non_null(strstr(text, "{\"ph\":\"B\",\"pid\":2,\"tid\":1,\"ts\":1234.567,"
                                 "\"name\":\"all_gather\",\"args\":{\"step\":7,\"bytes\":4096,"
                                 "\"id\":12,\"unit\":\"block.1\"}}"));
    assert_non_null(strstr(text, "{\"ph\":\"E\",\"pid\":2,\"tid\":1,\"ts\":2000.001}"));
    assert_non_null(
        strstr(text, "\"ts\":0.005,\"name\":\"step\",\"args\":{\"step\":0,\"bytes\":0}}"));
    assert_non_null(strstr(text, "{\"ph\":\"E\",\"pid\":2,\"tid\":4,\"ts\":1.004}"));
    free(text);
    hp_trace_destroy(trace);
}

static void strings_are_escaped(void **state) {
    (void)state;
    hp_trace *trace = create(0, 8);
    assert_int_equal(hp_trace_name_stream(trace, 0, "a\"b\\c\n\x01"), HP_OK);
    add(trace, 0, "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", 0, 1); /* good UTF-8 */
    add(trace, 0, "\xff|\xc3|\xc0\xaf|\xed\xa0\x80|\xf4\x90\x80\x80|\x80", 2,
        3); /* none of it is */
    add(trace, 0, NULL, 4, 5);
    assert_int_equal(hp_trace_write(trace, path), HP_OK);
    char *text = read_file();
    assert_true(is_json(text));
    assert_non_null(strstr(text, "\"a\\\"b\\\\c\\u000a\\u0001\""));
    assert_non_null(strstr(text, "\"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\""));
    assert_non_null(strstr(text, "\"\\ufffd|\\ufffd|\\ufffd\\ufffd|\\ufffd\\ufffd\\ufffd|"
                                 "\\ufffd\\ufffd\\ufffd\\ufffd|\\ufffd\""));
    free(text);
    hp_trace_destroy(trace);
}

/* Spans arrive when they end: children before their parents. */
static void parents_come_first(void **state) {
    (void)state;
    hp_trace *trace = create(0, 16);
    add(trace, 0, "wait", 12, 15);
    add(trace, 0, "inner", 11, 18);
    add(trace, 0, "forward", 10, 20);
    add(trace, 0, "backward", 20, 30);
    add(trace, 0, "step", 10, 30);
    assert_written_order(trace, "step forward inner wait E E E backward E E ");
    hp_trace_destroy(trace);
}

/* Instants stay in the order of recording, also where everything has the same time. */
static void instants_keep_their_order(void **state) {
    (void)state;
    hp_trace *trace = create(0, 16);
    add(trace, 0, "i", 5, 5);
    add(trace, 0, "j", 5, 5);
    add(trace, 0, "work", 5, 9);
    add(trace, 0, "k", 9, 9);
    add(trace, 0, "l", 9, 9);
    add(trace, 0, "more", 9, 12);
    assert_written_order(trace, "i E j E work E k E l E more E ");
    hp_trace_destroy(trace);
}

static void broken_promises_do_not_break_the_file(void **state) {
    (void)state;
    hp_trace *trace = create(0, 16);
    add(trace, 0, "a", 0, 10);
    add(trace, 0, "b", 5, 15);
    add(trace, 0, "c", 20, 18);
    assert_written_order(trace, "a b E E c E ");
    hp_trace_destroy(trace);
}

/* Record a random tree below [begin, end), in the order in which its spans end. */
static void record_tree(hp_trace *trace, unsigned stream, uint64_t begin, uint64_t end, int depth,
                        uint64_t *seed) {
    uint64_t at = begin;
    while (depth && at < end && hpi_random_next(seed) % 4) {
        const uint64_t to = at + hpi_random_next(seed) % (end - at + 1);
        record_tree(trace, stream, at, to, depth - 1, seed);
        at = to + hpi_random_next(seed) % 2;
    }
    add(trace, stream, "span", begin, end);
}

static uint64_t sum_squares(const hp_trace *trace, unsigned stream) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < hp_trace_count(trace, stream); i++) {
        const hp_span *span = hp_trace_at(trace, stream, i);
        sum += (span->end_ns - span->begin_ns) * (span->end_ns - span->begin_ns);
    }
    return sum;
}

static void random_trees_nest(void **state) {
    (void)state;
    uint64_t seed = 1;
    for (int round = 0; round < 20; round++) {
        struct stack stacks[HP_TRACE_STREAMS];
        hp_trace *trace = create(1, 20000);
        for (unsigned stream = 0; stream < 4; stream++)
            for (uint64_t i = 0; i < 10; i++)
                record_tree(trace, stream, i * 40, i * 40 + 40, 6, &seed);
        assert_int_equal(hp_trace_write(trace, path), HP_OK);
        char *text = read_file();
        assert_true(is_json(text));
        check_nesting(text, 1, stacks);
        for (unsigned stream = 0; stream < 4; stream++) {
            assert_int_equal(stacks[stream].n_closed, hp_trace_count(trace, stream));
            assert_int_equal(stacks[stream].sum_squares, sum_squares(trace, stream));
        }
        free(text);
        hp_trace_destroy(trace);
    }
}

/* ---- files that cannot be written ------------------------------------------------------------ */

static void a_missing_folder_is_named(void **state) {
    (void)state;
    hp_trace *trace = create(6, 1);
    hp_error error;
    assert_int_equal(hp_trace_write(trace, "/nonexistent/trace.json"), HP_ERR_FILE);
    hp_last_error_get(&error);
    assert_int_equal(error.world_rank, 6);
    assert_non_null(strstr(error.message, "/nonexistent/trace.json"));
    assert_non_null(strstr(error.message, "No such file"));
    hp_trace_destroy(trace);
}

static void a_folder_in_the_way_leaves_nothing_beside_it(void **state) {
    (void)state;
    hp_trace *trace = create(0, 1);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(hp_trace_write(trace, path), HP_ERR_FILE);
    assert_int_equal(count_files(), 1);
    hp_trace_destroy(trace);
}

/* A limit on the size of files stands in for a full disk. */
static void a_full_disk_keeps_the_old_file(void **state) {
    (void)state;
    hp_trace *trace = create(0, 1000);
    assert_int_equal(hp_trace_write(trace, path), HP_OK);
    char *before = read_file();
    for (uint64_t i = 0; i < 1000; i++)
        add(trace, 0, "span", i, i + 1);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 8192;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const hp_status status = hp_trace_write(trace, path);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(status, HP_ERR_FILE);
    assert_int_equal(count_files(), 1);
    char *after = read_file();
    assert_string_equal(before, after);
    free(before);
    free(after);
    hp_trace_destroy(trace);
}

static void writing_without_memory(void **state) {
    (void)state;
    hp_trace *trace = create(0, 1);
    add(trace, 0, "span", 1, 2);
    for (uint64_t n = 1; n <= 2; n++) {
        hpi_alloc_fail_after(n);
        assert_int_equal(hp_trace_write(trace, path), HP_ERR_MEMORY);
        assert_int_equal(count_files(), 0);
    }
    hpi_alloc_fail_after(0);
    assert_int_equal(hp_trace_write(trace, path), HP_OK);
    hp_trace_destroy(trace);
}

#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_are_kept_in_order),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(creation_without_memory),
        cmocka_unit_test(each_stream_has_its_thread),
        cmocka_unit_test(events_have_names),
        WITH_FOLDER(an_empty_trace_is_a_file),
        WITH_FOLDER(fields_of_events),
        WITH_FOLDER(strings_are_escaped),
        WITH_FOLDER(parents_come_first),
        WITH_FOLDER(instants_keep_their_order),
        WITH_FOLDER(broken_promises_do_not_break_the_file),
        WITH_FOLDER(random_trees_nest),
        cmocka_unit_test(a_missing_folder_is_named),
        WITH_FOLDER(a_folder_in_the_way_leaves_nothing_beside_it),
        WITH_FOLDER(a_full_disk_keeps_the_old_file),
        WITH_FOLDER(writing_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
