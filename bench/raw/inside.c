/* What programs do inside a file system, as fast as one thread can, and the seconds it took.
 *
 *   inside random FILE COUNT         reads 4 KiB at COUNT places by chance
 *   inside stat DIR ROUNDS           asks for the attributes of all names of DIR, ROUNDS times after the first
 *   inside create DIR COUNT BYTES    makes COUNT files of BYTES bytes, one after the other
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 4096

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static double random_reads(const char *path, long count) {
    static char buffer[BLOCK];
    int file = open(path, O_RDONLY);
    struct stat about;
    if (file < 0 || fstat(file, &about)) fail(path);
    long blocks = about.st_size / BLOCK;
    double begin = now();
    srandom(7512);
    for (long done = 0; done < count; done++)
        if (pread(file, buffer, BLOCK, random() % blocks * BLOCK) != BLOCK) fail("pread");
    return now() - begin;
}

static double stats(const char *folder, long rounds) {
    DIR *listing = opendir(folder);
    if (!listing || chdir(folder)) fail(folder);
    char **names = NULL;
    long count = 0;
    for (struct dirent *entry; (entry = readdir(listing));) {
        names = realloc(names, (count + 1) * sizeof *names);
        names[count++] = strdup(entry->d_name);
    }
    double begin = 0;
    struct stat about;
    for (long round = 0; round <= rounds; round++) {
        if (round == 1) begin = now();
        for (long at = 0; at < count; at++)
            if (lstat(names[at], &about)) fail(names[at]);
    }
    return now() - begin;
}

static double creates(const char *folder, long count, long bytes) {
    char *content = calloc(1, bytes + 1), name[32];
    if (chdir(folder)) fail(folder);
    double begin = now();
    for (long at = 0; at < count; at++) {
        snprintf(name, sizeof name, "f%06ld", at);
        int file = open(name, O_WRONLY | O_CREAT | O_EXCL, 0644);
        if (file < 0 || write(file, content, bytes) != bytes || close(file)) fail(name);
    }
    return now() - begin;
}

int main(int count, char **words) {
    double seconds = -1;
    if (count == 4 && !strcmp(words[1], "random")) seconds = random_reads(words[2], atol(words[3]));
    if (count == 4 && !strcmp(words[1], "stat")) seconds = stats(words[2], atol(words[3]));
    if (count == 5 && !strcmp(words[1], "create")) seconds = creates(words[2], atol(words[3]), atol(words[4]));
    if (seconds < 0) {
        fputs("usage: inside random FILE COUNT | stat DIR ROUNDS | create DIR COUNT BYTES\n", stderr);
        return 2;
    }
    printf("%.6f\n", seconds);
    return 0;
}
