"""Checks the server's TLS by the kernel, in a guest whose kernel has it: `ktls.py FOREBAY SHARE TESTS PROGRAMS MODULE...`

SHARE has the certificates, TESTS is the binary of the transport's tests. PROGRAMS has the daemon for handshakes of the
kernel's client; it is `-` for a kernel whose client has no TLS. Each check prints `ok NAME` or `not ok NAME: WHY`.
"""

import contextlib
import hashlib
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import time
import traceback

from quota_rig import MAKE, MIB, PATIENCE, PORT, SERVED, SSD, Server, expect, image

FOREBAY, SHARE, TESTS, PROGRAMS, *MODULES = sys.argv[1:]
HOST, CLIENT, MOUNT = "forebay.test", "guest.test", "/mnt"
# The flavour of authentication that asks for TLS (RFC 9289 section 4.1), and that of nobody.
AUTH_TLS, AUTH_NONE = 7, 0
NFS_PROGRAM = 100003


def run(*words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    expect(done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}: {done.stdout.decode()[-400:]}")
    return done.stdout.decode()


def figures():
    """Returns the kernel's counters of TLS."""
    with open("/proc/net/tls_stat") as table:
        return {name: int(value) for name, value in (line.split() for line in table)}


def status(server):
    return json.loads(server.ask("status", "--json")[1])


def tls_server(mode, policy="required"):
    """Starts a server whose export takes connections with TLS only, or as clients like."""
    files = ["--tls-cert", f"{SHARE}/{HOST}.pem", "--tls-key", f"{SHARE}/{HOST}.key"]
    return Server(mode, FOREBAY, ["--tls", policy, "--sandbox", "strict", *files])


def stop(server):
    server.process.terminate()
    expect(server.process.wait(PATIENCE) == 0, f"the server ended badly: {server.log()}")


# The checks

def the_tests_of_the_transport_pass_in_the_kernel():
    before = figures()
    environment = {**os.environ, "FOREBAY_TEST_KERNEL_TLS": "1"}
    done = subprocess.run([TESTS, "--test-threads", "2"], env=environment, capture_output=True, text=True)
    print(done.stdout, flush=True)
    expect(done.returncode == 0, " ".join(done.stdout.split())[-2000:] + done.stderr[-1000:])
    after = figures()
    for direction in ("TlsTxSw", "TlsRxSw"):
        # A connection of most tests, and the probe.
        expect(after[direction] - before[direction] > 15, f"the kernel was hardly used: {before} {after}")


def null_call(connection, number, flavor):
    """Sends a call of the procedure that does nothing, and returns the reply."""
    call = struct.pack(">6I4I", number, 0, 2, NFS_PROGRAM, 3, 0, flavor, 0, AUTH_NONE, 0)
    connection.sendall(struct.pack(">I", 1 << 31 | len(call)) + call)
    wanted, reply = 4, b""
    while len(reply) < wanted:
        more = connection.recv(wanted - len(reply))
        expect(more, "the server has closed the connection")
        reply += more
        if len(reply) == 4:
            wanted = 4 + (struct.unpack(">I", reply)[0] & 0x7fff_ffff)
    expect(struct.unpack_from(">I", reply, 4)[0] == number, f"another reply: {reply}")
    return reply


def the_server_gives_its_keys_to_the_kernel():
    server = tls_server("pass-through")
    before = figures()
    with socket.create_connection((HOST, PORT), PATIENCE) as plain:
        expect(b"STARTTLS" in null_call(plain, 1, AUTH_TLS), "the server offers no TLS")
        trust = ssl.create_default_context(cafile=f"{SHARE}/ca.pem")
        with trust.wrap_socket(plain, server_hostname=HOST) as sealed:
            for number in range(2, 50):
                null_call(sealed, number, AUTH_NONE)
            shown, after = status(server), figures()
            counts = [shown["encrypted"], shown["encrypted_in_kernel"]]
            expect(counts == [1, 1], f"encrypted connections, and those in the kernel: {counts}: {server.log()}")
            for direction in ("TlsCurrTxSw", "TlsCurrRxSw"):
                expect(after[direction] == before[direction] + 1, f"{before} {after}")
            # The client says farewell, and so does the server.
            sealed.unwrap()
    stop(server)
    expect("the kernel encrypts connections with TLS" in server.log(), server.log())
    expect(figures()["TlsDecryptError"] == before["TlsDecryptError"], "a record could not be opened")


def a_server_may_leave_the_kernel_out():
    server = Server("pass-through", FOREBAY, ["--tls-kernel=false"] + [
        "--tls-cert", f"{SHARE}/{HOST}.pem", "--tls-key", f"{SHARE}/{HOST}.key"])
    with socket.create_connection((HOST, PORT), PATIENCE) as plain:
        null_call(plain, 1, AUTH_TLS)
        trust = ssl.create_default_context(cafile=f"{SHARE}/ca.pem")
        with trust.wrap_socket(plain, server_hostname=HOST) as sealed:
            null_call(sealed, 2, AUTH_NONE)
            shown = status(server)
            expect([shown["encrypted"], shown["encrypted_in_kernel"]] == [1, 0], shown["encrypted_in_kernel"])
    stop(server)


def start_daemon():
    """Starts the daemon that does the handshakes. It is a program of another release, with that release's loader."""
    libraries = f"{PROGRAMS}/usr/lib/x86_64-linux-gnu"
    with open("/run/tlshd.conf", "w") as file:
        file.write(f"[debug]\nloglevel=0\ntls=0\nnl=0\n[authenticate.client]\nx509.truststore={SHARE}/ca.pem\n")
    subprocess.Popen([f"{libraries}/ld-linux-x86-64.so.2", "--library-path", libraries, f"{PROGRAMS}/usr/sbin/tlshd",
                      "-s", "-c", "/run/tlshd.conf"])


@contextlib.contextmanager
def mounted(*options):
    words = ["mount", "-t", "nfs", "-o", ",".join(("xprtsec=tls", *options)), f"{HOST}:/", MOUNT]
    end = time.monotonic() + PATIENCE
    # Until the daemon answers, a mount fails.
    while (done := subprocess.run(words, capture_output=True, text=True)).returncode:
        expect(time.monotonic() < end, f"{words}: {done.stderr}")
        time.sleep(1)
    try:
        yield
    finally:
        run("umount", MOUNT)


def content(number, size):
    """Returns bytes that depend on the file and on the place."""
    block = hashlib.sha256(str(number).encode()).digest()
    return b"".join(block[:28] + struct.pack(">I", at) for at in range(size // 32 + 1))[:size]


SIZES = [0, 1, 4095, 4096, 70_001, 128 << 10, (1 << 20) + 3, 5 << 20]


def write_files(name):
    for number, size in enumerate(SIZES):
        with open(f"{MOUNT}/{name}-{number}", "wb") as file:
            file.write(content(number, size))
            os.fsync(file.fileno())


def check_files(name, directory=MOUNT):
    if directory == MOUNT:
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("1\n")
    for number, size in enumerate(SIZES):
        with open(f"{directory}/{name}-{number}", "rb") as file:
            expect(file.read() == content(number, size), f"{directory}/{name}-{number} has other contents")


def all_in_kernel(server, before):
    """Checks that both ends of each connection have their keys in the kernel, and that every record was opened."""
    shown, now = status(server), figures()
    encrypted, in_kernel = shown["encrypted"], shown["encrypted_in_kernel"]
    expect(encrypted > 0 and encrypted == in_kernel, f"{in_kernel} of {encrypted} connections are in the kernel")
    for direction in ("TlsCurrTxSw", "TlsCurrRxSw"):
        expect(now[direction] - before[direction] == 2 * encrypted, f"{encrypted} connections: {before} {now}")
    expect(now["TlsDecryptError"] == before["TlsDecryptError"], "a record could not be opened")


def files_pass(mode, policy, name, *options):
    server, before = tls_server(mode, policy), figures()
    with mounted(*options):
        write_files(name)
        check_files(name)
        all_in_kernel(server, before)
    server.destaged() if mode == "write-back" else os.sync()
    check_files(name, SERVED)
    with mounted(*options):
        # The pages of the directory are in memory now.
        check_files(name)
        all_in_kernel(server, before)
    stop(server)


def files_pass_in_version_4():
    files_pass("write-back", "required", "four", "vers=4.2")


def files_pass_in_version_3_over_several_connections():
    # The client asks for the mount on a connection without TLS.
    files_pass("pass-through", "optional", "three", "vers=3", "nolock", "nconnect=4", f"port={PORT}", f"mountport={PORT}",
               "proto=tcp", "mountproto=tcp")


def a_killed_server_is_found_again():
    server, before = tls_server("write-back"), figures()
    with mounted("vers=4.2"):
        write_files("before")
        writer = os.fork()
        if writer == 0:
            try:
                for round_ in range(6):
                    write_files(f"during-{round_}")
                os._exit(0)
            except BaseException:  # noqa: B902: the status tells the parent
                traceback.print_exc()
                os._exit(1)
        for _ in range(2):
            time.sleep(2)
            server.crash()
        expect(os.waitpid(writer, 0)[1] == 0, "the writer failed")
        for name in ("before", *(f"during-{round_}" for round_ in range(6))):
            check_files(name)
        all_in_kernel(server, before)
    server.destaged()
    check_files("during-5", SERVED)
    stop(server)


def main():
    for module in MODULES:
        subprocess.run(["busybox", "insmod", module], check=True)
    with open("/etc/hosts", "a") as hosts:
        hosts.write(f"127.0.0.1 {HOST}\n")
    for place in (SERVED, SSD):
        # A check of quotas may have run before in this guest.
        if os.path.ismount(place):
            run("umount", place)
            os.rmdir(place)
    image("served-tls", 300 * MIB, MAKE["ext4"][:4], SERVED)
    image("ssd-tls", 300 * MIB, MAKE["ext4"][:4], SSD)
    checks = [the_tests_of_the_transport_pass_in_the_kernel, the_server_gives_its_keys_to_the_kernel,
              a_server_may_leave_the_kernel_out]
    if PROGRAMS != "-":
        run("hostname", CLIENT)
        start_daemon()
        checks += [files_pass_in_version_4, files_pass_in_version_3_over_several_connections,
                   a_killed_server_is_found_again]
    for check in checks:
        try:
            check()
            print(f"ok {check.__name__}", flush=True)
        except Exception as error:
            # A server that is left would have the port of the next one.
            subprocess.run(["busybox", "killall", "-9", "forebay"], stderr=subprocess.DEVNULL)
            line = traceback.extract_tb(error.__traceback__)[-1].lineno
            text = str(error).replace("\n", " ") or "assertion"
            print(f"not ok {check.__name__}: line {line}: {type(error).__name__}: {text}", flush=True)


main()
