"""What benchmarks/peers/run times of plain sockets: two processes that send each other as many bytes as an all-reduce
has, both at once, over one TCP connection. The same loop as in bursts.h."""

import argparse
import json
import select
import socket
import time

CHUNK = 1 << 18


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channel", required=True)
    parser.add_argument("--max-bytes", type=int, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--place", type=int, required=True, help="0 listens, 1 calls")
    options = parser.parse_args()

    link = meet(options)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    outgoing, incoming = memoryview(bytearray(options.max_bytes)), memoryview(bytearray(options.max_bytes))
    with link, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as run:
        run.connect(options.channel)
        run.send(b"ready")
        while (message := run.recv(128)) != b"end":
            verb, *numbers = message.decode().split() or ["nothing: the benchmark went away"]
            if verb == "check":
                exchange(link, outgoing[: int(numbers[0])], incoming[: int(numbers[0])])
                run.send(b"right")
            elif verb == "burst":
                size, warmup, samples, batch = map(int, numbers)
                run.send(json.dumps(burst(link, outgoing[:size], incoming[:size], warmup, samples, batch)).encode())
            else:
                raise SystemExit(f"not for an exchange: {verb}")


def meet(options):
    if options.place == 0:
        with socket.create_server((options.host, options.port)) as listener:
            return listener.accept()[0]
    while True:
        try:
            return socket.create_connection((options.host, options.port))
        except ConnectionRefusedError:
            time.sleep(0.05)


def burst(link, outgoing, incoming, warmup, samples, batch):
    call_s = []
    for i in range(warmup + samples):
        exchange(link, outgoing[:1], incoming[:1])
        begin = time.perf_counter()
        for _ in range(batch):
            exchange(link, outgoing, incoming)
        taken = time.perf_counter() - begin
        if i >= warmup:
            call_s.append(taken / batch)
    return call_s


def exchange(link, outgoing, incoming):
    link.setblocking(False)
    sent = received = 0
    while sent < len(outgoing) or received < len(incoming):
        wants_to_send = [link] if sent < len(outgoing) else []
        wants_more = [link] if received < len(incoming) else []
        readable, writable, _ = select.select(wants_more, wants_to_send, [])
        if writable:
            sent += link.send(outgoing[sent : sent + CHUNK])
        if readable:
            got = link.recv_into(incoming[received : received + CHUNK])
            if got == 0:
                raise SystemExit("the other process has ended")
            received += got


if __name__ == "__main__":
    main()
