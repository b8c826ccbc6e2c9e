/* SPDX-License-Identifier: Apache-2.0
 *
 * files.c - whole files, synced, and errors that name the path.
 *
 * Reading is by pread, not by a mapping: a file that shrinks or a disk that fails under us is then
 * an error to return and not a SIGBUS.
 */
#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h> /* rename, renameat2 */
#include <sys/stat.h>
#include <unistd.h>

#define FAIL_SYSTEM(path, what)                                                                    \
    HPI_FAIL(HP_ERR_FILE, "expected to %s %s, the system says: %s", (what), (path), strerror(errno))

/* Linux moves at most 2 GiB in one call; a piece that size also keeps a signal's answer short. */
static const size_t most_per_call = (size_t)1 << 30;

static bool write_all(int fd, uint64_t offset, const unsigned char *data, uint64_t n_bytes) {
    while (n_bytes) {
        const ssize_t n = pwrite(fd, data, hpi_min(n_bytes, most_per_call), (off_t)offset);
        if (n < 0 && errno != EINTR)
            return false;
        if (n > 0) {
            data += n;
            offset += (uint64_t)n;
            n_bytes -= (uint64_t)n;
        }
    }
    return true;
}

/* Have the disk keep the bytes where it can; else the file has its size and a full disk is found
 * while writing. */
static bool reserve(int fd, uint64_t n_bytes) {
    int failed;
    if (n_bytes == 0)
        return true;
    do
        failed = fallocate(fd, 0, 0, (off_t)n_bytes);
    while (failed && errno == EINTR);
    return !failed || (errno == EOPNOTSUPP && ftruncate(fd, (off_t)n_bytes) == 0);
}

static bool close_synced(int fd) {
    const bool is_good = fsync(fd) == 0;
    const int cause = errno;
    if (close(fd) != 0)
        return false;
    errno = cause;
    return is_good;
}

hp_status hpi_file_reserve(const char *path, const struct iovec *parts, uint64_t n_parts,
                           uint64_t n_bytes) {
    const int fd = hpi_fd_above_stdio(open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd < 0)
        return FAIL_SYSTEM(path, "create");
    uint64_t offset = 0;
    bool is_good = reserve(fd, n_bytes);
    for (uint64_t i = 0; is_good && i < n_parts; offset += parts[i++].iov_len)
        is_good = write_all(fd, offset, parts[i].iov_base, parts[i].iov_len);
    int cause = errno;
    if (!close_synced(fd) && is_good) {
        is_good = false;
        cause = errno;
    }
    if (is_good)
        return HP_OK;
    unlink(path);
    errno = cause;
    return FAIL_SYSTEM(path, "write");
}

hp_status hpi_file_create(const char *path, const struct iovec *parts, uint64_t n_parts) {
    return hpi_file_reserve(path, parts, n_parts, 0);
}

hp_status hpi_file_open_to_write(const char *path, int *out_fd) {
    *out_fd = hpi_fd_above_stdio(open(path, O_WRONLY | O_CLOEXEC));
    return *out_fd >= 0 ? HP_OK : FAIL_SYSTEM(path, "open");
}

hp_status hpi_file_write(int fd, const char *path, uint64_t offset, const void *data,
                         uint64_t n_bytes) {
    return write_all(fd, offset, data, n_bytes) ? HP_OK : FAIL_SYSTEM(path, "write");
}

hp_status hpi_file_finish(int fd, const char *path) {
    return close_synced(fd) ? HP_OK : FAIL_SYSTEM(path, "write");
}

hp_status hpi_file_open(const char *path, int *out_fd, uint64_t *out_bytes) {
    struct stat about;
    const int fd = hpi_fd_above_stdio(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd < 0)
        return FAIL_SYSTEM(path, "open");
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        close(fd);
        return HPI_FAIL(HP_ERR_FILE, "expected %s to be a regular file, it is not", path);
    }
    *out_fd = fd;
    *out_bytes = (uint64_t)about.st_size;
    return HP_OK;
}

hp_status hpi_file_read(int fd, const char *path, uint64_t offset, void *out, uint64_t n_bytes) {
    unsigned char *to = out;
    while (n_bytes) {
        const ssize_t n = pread(fd, to, hpi_min(n_bytes, most_per_call), (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return FAIL_SYSTEM(path, "read");
        if (n == 0)
            return HPI_FAIL(HP_ERR_FORMAT, "%s: expected %llu more bytes at %llu, the file ends",
                            path, (unsigned long long)n_bytes, (unsigned long long)offset);
        to += n;
        offset += (uint64_t)n;
        n_bytes -= (uint64_t)n;
    }
    return HP_OK;
}

hp_status hpi_file_read_text(const char *path, uint64_t most_bytes, char **out_text,
                             uint64_t *out_bytes) {
    int fd;
    uint64_t n_bytes;
    HP_TRY(hpi_file_open(path, &fd, &n_bytes));
    hp_status status = HP_OK;
    char *text = NULL;
    if (n_bytes > most_bytes)
        status = HPI_FAIL(HP_ERR_FORMAT, "%s: expected at most %llu bytes, found %llu", path,
                          (unsigned long long)most_bytes, (unsigned long long)n_bytes);
    else if (!(text = hpi_alloc(n_bytes + 1, 1)))
        status = HP_ERR_MEMORY;
    else
        status = hpi_file_read(fd, path, 0, text, n_bytes);
    close(fd);
    if (status < 0) {
        hpi_free(text);
        return status;
    }
    *out_text = text;
    *out_bytes = n_bytes;
    return HP_OK;
}

hp_status hpi_rename(const char *from, const char *to) {
    if (rename(from, to) == 0)
        return HP_OK;
    return HPI_FAIL(HP_ERR_FILE, "expected to rename %s to %s, the system says: %s", from, to,
                    strerror(errno));
}

hp_status hpi_directory_replace(const char *path, const char *final, const char *aside) {
    if (renameat2(AT_FDCWD, path, AT_FDCWD, final, RENAME_EXCHANGE) == 0)
        return HP_OK;
    if (errno != ENOENT && errno != EINVAL && errno != ENOSYS)
        return HPI_FAIL(HP_ERR_FILE, "expected to exchange %s with %s, the system says: %s", path,
                        final, strerror(errno));
    if (access(final, F_OK) != 0)
        return hpi_rename(path, final);
    HP_TRY(hpi_rename(final, aside));
    const hp_status status = hpi_rename(path, final);
    if (status < 0)
        (void)rename(aside, final); /* what fails is not silent: the record is written */
    return status;
}

hp_status hpi_directory_sync(const char *path) {
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return FAIL_SYSTEM(path, "open");
    const bool is_good = fsync(fd) == 0;
    const int cause = errno;
    close(fd);
    errno = cause;
    return is_good ? HP_OK : FAIL_SYSTEM(path, "sync");
}

void hpi_directory_remove(const char *path) {
    DIR *directory = opendir(path);
    if (!directory)
        return;
    for (struct dirent *entry; (entry = readdir(directory));)
        unlinkat(dirfd(directory), entry->d_name, 0); /* fails for . and .., as it should */
    closedir(directory);
    rmdir(path);
}

bool hpi_is_plain_name(const char *name) {
    return name && *name && *name != '.' && !strchr(name, '/');
}

char *hpi_path_join(const char *directory, const char *name) {
    const size_t n_bytes = strlen(directory) + strlen(name) + 2;
    char *path = hpi_alloc(n_bytes, 1);
    if (path)
        snprintf(path, n_bytes, "%s/%s", directory, name);
    return path;
}
