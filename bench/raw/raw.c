/* The floor: what the kernel takes to bring files from one host to another, with nothing added.
 *
 *   raw serve PORT           one connection after another; what arrives is written below the folder the sender names
 *   raw send HOST PORT FOLDER ITEM   sends the file or tree ITEM (a path) into FOLDER at the server
 *
 * sendfile at the sender, recv and pwrite at the receiver, one TCP stream, no digest, no encryption. The server
 * answers when all is on stable storage (syncfs). It trusts its peer and is for the benchmark alone.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <netdb.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_ITEM = 1, FOLDER_ITEM = 2, END_ITEM = 3, BLOCK = 1 << 20 };

struct header {
    uint64_t size;
    uint32_t kind;
    uint32_t name;
};

static void send_all(int stream, const void *from, size_t left, int flags) {
    for (const char *at = from; left > 0;) {
        ssize_t done = send(stream, at, left, flags | MSG_NOSIGNAL);
        if (done < 0) err(1, "send");
        at += done;
        left -= done;
    }
}

/* Returns 0 when the peer has closed before the first byte. */
static int receive_all(int stream, void *into, size_t left) {
    size_t whole = left;
    for (char *at = into; left > 0;) {
        ssize_t done = recv(stream, at, left, 0);
        if (done < 0) err(1, "recv");
        if (done == 0 && left == whole) return 0;
        if (done == 0) errx(1, "the peer closed in the middle");
        at += done;
        left -= done;
    }
    return 1;
}

static void send_header(int stream, uint32_t kind, uint64_t size, const char *name) {
    struct header header = {size, kind, (uint32_t)strlen(name)};
    send_all(stream, &header, sizeof header, MSG_MORE);
    send_all(stream, name, header.name, kind == END_ITEM ? 0 : MSG_MORE);
}

static void send_file(int stream, const char *path, const char *name) {
    int file = open(path, O_RDONLY);
    struct stat facts;
    if (file < 0 || fstat(file, &facts)) err(1, "%s", path);
    send_header(stream, FILE_ITEM, facts.st_size, name);
    for (off_t left = facts.st_size; left > 0;) {
        ssize_t done = sendfile(stream, file, NULL, left > BLOCK ? BLOCK : left);
        if (done <= 0) err(1, "sendfile %s", path);
        left -= done;
    }
    close(file);
}

static int connect_to(const char *host, const char *port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int wrong = getaddrinfo(host, port, &hints, &found);
    if (wrong) errx(1, "%s: %s", host, gai_strerror(wrong));
    int stream = socket(found->ai_family, SOCK_STREAM, 0);
    if (stream < 0 || connect(stream, found->ai_addr, found->ai_addrlen)) err(1, "%s", host);
    freeaddrinfo(found);
    return stream;
}

static void send_tree(int stream, char *item) {
    char *roots[] = {item, NULL};
    const char *slash = strrchr(item, '/');
    size_t skip = slash ? (size_t)(slash - item) + 1 : 0;
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (!walk) err(1, "%s", item);
    for (FTSENT *entry; (entry = fts_read(walk));) {
        if (entry->fts_info == FTS_D) send_header(stream, FOLDER_ITEM, 0, entry->fts_path + skip);
        if (entry->fts_info == FTS_F) send_file(stream, entry->fts_accpath, entry->fts_path + skip);
    }
    fts_close(walk);
}

static void receive_file(int stream, int folder, const char *name, uint64_t size, char *block) {
    int file = openat(folder, name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file < 0) err(1, "%s", name);
    for (uint64_t at = 0; at < size;) {
        ssize_t done = recv(stream, block, size - at > BLOCK ? BLOCK : size - at, 0);
        if (done <= 0) err(1, "recv");
        for (ssize_t written = 0; written < done;) {
            ssize_t more = pwrite(file, block + written, done - written, at + written);
            if (more < 0) err(1, "%s", name);
            written += more;
        }
        at += done;
    }
    if (close(file)) err(1, "%s", name);
}

static void serve_one(int stream, char *block) {
    char name[4097];
    struct header header;
    int folder = -1;
    while (receive_all(stream, &header, sizeof header)) {
        if (header.name >= sizeof name) errx(1, "a name of %u bytes", header.name);
        if (header.name && !receive_all(stream, name, header.name)) errx(1, "no name came");
        name[header.name] = 0;
        if (header.kind == END_ITEM) {
            if (syncfs(folder)) err(1, "syncfs");
            send_all(stream, "!", 1, 0);
        } else if (folder < 0) {
            if ((folder = open(name, O_RDONLY | O_DIRECTORY)) < 0) err(1, "%s", name);
        } else if (header.kind == FOLDER_ITEM) {
            if (mkdirat(folder, name, 0755) && errno != EEXIST) err(1, "%s", name);
        } else {
            receive_file(stream, folder, name, header.size, block);
        }
    }
    close(folder);
}

static void serve(const char *port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE, .ai_family = AF_INET}, *found;
    if (getaddrinfo(NULL, port, &hints, &found)) errx(1, "bad port %s", port);
    int listener = socket(found->ai_family, SOCK_STREAM, 0), yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, found->ai_addr, found->ai_addrlen) || listen(listener, 8)) err(1, "port %s", port);
    freeaddrinfo(found);
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int stream = accept(listener, NULL, NULL);
        if (stream < 0) err(1, "accept");
        if (fork() == 0) {
            char *block = malloc(BLOCK);
            if (!block) err(1, "memory");
            serve_one(stream, block);
            _exit(0);
        }
        close(stream);
    }
}

int main(int count, char **words) {
    if (count == 3 && !strcmp(words[1], "serve")) serve(words[2]);
    if (count != 6 || strcmp(words[1], "send")) errx(2, "usage: raw serve PORT | raw send HOST PORT FOLDER ITEM");
    int stream = connect_to(words[2], words[3]);
    char answer;
    send_header(stream, FOLDER_ITEM, 0, words[4]);
    send_tree(stream, words[5]);
    send_header(stream, END_ITEM, 0, "");
    if (!receive_all(stream, &answer, 1)) errx(1, "the server gave up");
    return 0;
}
