// User-mode Linux before 6.13 sets the floating-point registers of a process with the 2,696 bytes of AVX-512. ptrace(2)
// accepts only the whole state of the processor, which is larger with AMX: the guest then ends at its first program. With
// this library preloaded, the bytes behind stay as they are.
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

// The stacks of a guest's kernel have no room for it, and the guest has one processor.
static char state[1 << 16];

static long set_state(long pid, const struct iovec *part)
{
    struct iovec whole = { state, sizeof state };
    if (part->iov_len > sizeof state) {
        errno = EINVAL;
        return -1;
    }
    if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, NT_X86_XSTATE, &whole) < 0)
        return -1;
    memcpy(state, part->iov_base, part->iov_len < whole.iov_len ? part->iov_len : whole.iov_len);
    return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, NT_X86_XSTATE, &whole);
}

long ptrace(enum __ptrace_request request, ...)
{
    va_list rest;
    va_start(rest, request);
    long pid = va_arg(rest, int), address = va_arg(rest, long);
    void *data = va_arg(rest, void *);
    va_end(rest);
    if (request == PTRACE_SETREGSET && address == NT_X86_XSTATE)
        return set_state(pid, data);
    // The system call stores a word that is read, and the function returns it.
    long word = 0;
    int reads = request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER;
    long result = syscall(SYS_ptrace, (long)request, pid, address, reads ? &word : data);
    if (result < 0 || !reads)
        return result;
    errno = 0;
    return word;
}
