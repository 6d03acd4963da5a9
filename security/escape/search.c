/* Looks for secrets everywhere a guest's root can look, without ever holding them itself.
 *
 * Runs inside the guest. Standard input: lines "NAME HEX", the secret's bytes XORed with 0xA5, so that what is
 * looked for is nowhere in the guest because of us. Arguments: block devices to read, after a nonce that begins each
 * line it says: "NONCE found NAME PLACE" and "NONCE looked KIND COUNT BYTES". */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <elf.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MASK 0xA5
#define NEEDLES 16
#define LONGEST 256
#define CHUNK (1 << 20)

struct needle {
    char name[32];
    uint8_t masked[LONGEST];
    size_t length;
};

static struct needle needles[NEEDLES];
static int count;
static uint8_t buffer[LONGEST + CHUNK];
static const char *nonce;
static uint64_t looked_bytes, looked_count;

static int matches(const uint8_t *at, const struct needle *wanted) {
    for (size_t i = 0; i < wanted->length; i++) {
        if ((at[i] ^ MASK) != wanted->masked[i]) return 0;
    }
    return 1;
}

static void search(const uint8_t *data, size_t size, const char *place) {
    for (int n = 0; n < count; n++) {
        const struct needle *wanted = &needles[n];
        const uint8_t *at = data, *end = data + size;
        uint8_t first = wanted->masked[0] ^ MASK;
        while ((size_t)(end - at) >= wanted->length &&
               (at = memchr(at, first, (size_t)(end - at) - wanted->length + 1)) != NULL) {
            if (matches(at, wanted)) {
                printf("%s found %s %s\n", nonce, wanted->name, place);
                break;
            }
            at++;
        }
    }
}

/* From `at` on, `size` bytes at most; the ends of the pieces overlap by the longest needle. */
static void read_through(int fd, off_t at, uint64_t size, const char *place) {
    size_t kept = 0;
    looked_count++;
    while (size > 0) {
        size_t wanted = size < CHUNK ? (size_t)size : CHUNK;
        ssize_t got = pread(fd, buffer + kept, wanted, at);
        if (got <= 0) return;
        search(buffer, kept + (size_t)got, place);
        looked_bytes += (uint64_t)got;
        at += got;
        size -= (uint64_t)got;
        size_t have = kept + (size_t)got;
        kept = have < LONGEST ? have : LONGEST;
        memmove(buffer, buffer + have - kept, kept);
    }
}

static void whole_file(const char *path) {
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    read_through(fd, 0, UINT64_MAX, path);
    close(fd);
}

static void said(const char *kind) {
    printf("%s looked %s %" PRIu64 " %" PRIu64 "\n", nonce, kind, looked_count, looked_bytes);
    fflush(stdout);
    looked_bytes = looked_count = 0;
}

static void memory_of(const char *pid) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%s/maps", pid);
    FILE *maps = fopen(path, "re");
    if (maps == NULL) return;
    snprintf(path, sizeof path, "/proc/%s/mem", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && fgets(line, sizeof line, maps) != NULL) {
        uint64_t begin, end;
        char rights[8];
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s", &begin, &end, rights) == 3 && rights[0] == 'r')
            read_through(fd, (off_t)begin, end - begin, path);
    }
    if (fd >= 0) close(fd);
    fclose(maps);
}

static void each_process(void (*visit)(const char *pid)) {
    DIR *all = opendir("/proc");
    for (struct dirent *entry = all ? readdir(all) : NULL; entry != NULL; entry = readdir(all)) {
        if (isdigit((unsigned char)entry->d_name[0]) && atoi(entry->d_name) != getpid()) visit(entry->d_name);
    }
    if (all != NULL) closedir(all);
}

static void surroundings_of(const char *pid) {
    static const char *const files[] = {"environ", "cmdline", "auxv", "stack", "comm"};
    char path[64];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "/proc/%s/%s", pid, files[i]);
        whole_file(path);
    }
}

static int each_file(const char *path, const struct stat *facts, int kind, struct FTW *where) {
    (void)where;
    if (kind == FTW_D && (strcmp(path, "/proc") == 0 || strcmp(path, "/sys") == 0)) return FTW_SKIP_SUBTREE;
    if (kind == FTW_F && S_ISREG(facts->st_mode)) whole_file(path);
    return FTW_CONTINUE;
}

/* /proc/kcore is an ELF core of the kernel; segments with a physical address are RAM (fs/proc/kcore.c). */
static void kernel_memory(void) {
    int fd = open("/proc/kcore", O_RDONLY | O_CLOEXEC);
    Elf64_Ehdr head;
    if (fd < 0 || pread(fd, &head, sizeof head, 0) != sizeof head) return;
    for (int i = 0; i < head.e_phnum; i++) {
        Elf64_Phdr part;
        if (pread(fd, &part, sizeof part, (off_t)(head.e_phoff + (uint64_t)i * sizeof part)) != sizeof part) break;
        if (part.p_type != PT_LOAD || part.p_paddr == UINT64_MAX || part.p_filesz > (1ull << 32)) continue;
        /* a hole ends one read, not the segment */
        for (uint64_t at = 0; at < part.p_filesz; at += CHUNK) {
            uint64_t left = part.p_filesz - at;
            read_through(fd, (off_t)(part.p_offset + at), left < CHUNK + LONGEST ? left : CHUNK + LONGEST, "/proc/kcore");
        }
    }
    close(fd);
}

static int take_needles(void) {
    char line[32 + 2 * LONGEST + 8], hex[2 * LONGEST + 1];
    while (count < NEEDLES && fgets(line, sizeof line, stdin) != NULL) {
        struct needle *made = &needles[count];
        if (sscanf(line, "%31s %512s", made->name, hex) != 2) continue;
        made->length = strlen(hex) / 2;
        for (size_t i = 0; i < made->length; i++) sscanf(hex + 2 * i, "%2hhx", &made->masked[i]);
        count += made->length >= 8;
    }
    return count;
}

int main(int argc, char **argv) {
    if (argc < 2 || take_needles() == 0) return 2;
    nonce = argv[1];
    each_process(surroundings_of);
    whole_file("/proc/cmdline");
    said("surroundings");
    nftw("/", each_file, 16, FTW_PHYS | FTW_ACTIONRETVAL);
    said("files");
    each_process(memory_of);
    said("memory");
    for (int i = 2; i < argc; i++) whole_file(argv[i]);
    said("disks");
    kernel_memory();
    said("kernel");
    return 0;
}
