"""Times attention in ONNX Runtime and in attnserve, in turn, on the same shapes and threads.

Usage: onnxruntime_peer.py ATTNSERVE_BENCH [--threads N] [--rounds N] [--json FILE]
"""
import argparse
import json
import subprocess
import time

import numpy
import onnxruntime
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT


def session(nodes, inputs, outputs, threads, spinning, opset):
    graph = helper.make_graph(
        nodes, "attention",
        [helper.make_tensor_value_info(n, kind, shape) for n, kind, shape in inputs],
        [helper.make_tensor_value_info(n, FLOAT, None) for n in outputs])
    model = helper.make_model(graph, opset_imports=[
        helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def runner(run_session, feeds, outputs):
    """A call without copies of inputs; outputs stay with ONNX Runtime."""
    binding = run_session.io_binding()
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(v) for name, v in feeds.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for name in outputs:
        binding.bind_output(name)

    def run():
        start = time.perf_counter()
        run_session.run_with_iobinding(binding)
        return time.perf_counter() - start
    return run, values


def random(*shape):
    return numpy.random.default_rng(1).uniform(-1, 1, shape).astype(numpy.float32)


def attention_operator(shape, threads, spinning):
    """ai.onnx Attention: keys and values given whole, nothing to append."""
    b, tokens, queries, heads, kv_heads, size = shape
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=int(queries > 1))
    q, kv = [b, heads, queries, size], [b, kv_heads, tokens, size]
    made = session([node], [("q", FLOAT, q), ("k", FLOAT, kv), ("v", FLOAT, kv)], ["y"], threads,
                   spinning, 23)
    return runner(made, {"q": random(*q), "k": random(*kv), "v": random(*kv)}, ["y"])


def multi_head_attention(shape, threads, spinning):
    """com.microsoft MultiHeadAttention: its flash kernel, which knows no causal mask."""
    b, tokens, queries, heads, kv_heads, size = shape
    if heads != kv_heads or queries == 1:
        return None
    node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft",
                            num_heads=heads, unidirectional=1)
    q, kv = [b, queries, heads * size], [b, tokens, heads * size]
    made = session([node], [("q", FLOAT, q), ("k", FLOAT, kv), ("v", FLOAT, kv)], ["y"], threads,
                   spinning, 21)
    return runner(made, {"q": random(*q), "k": random(*kv), "v": random(*kv)}, ["y"])


def group_query_attention(shape, threads, spinning):
    """com.microsoft GroupQueryAttention: the past in a buffer that the present shares."""
    b, tokens, queries, heads, kv_heads, size = shape
    node = helper.make_node(
        "GroupQueryAttention",
        ["q", "k", "v", "past_key", "past_value", "seqlens", "total"],
        ["y", "present_key", "present_value"], domain="com.microsoft", num_heads=heads,
        kv_num_heads=kv_heads)
    q, kv = [b, queries, heads * size], [b, queries, kv_heads * size]
    past = [b, kv_heads, tokens, size]
    made = session([node], [("q", FLOAT, q), ("k", FLOAT, kv), ("v", FLOAT, kv),
                            ("past_key", FLOAT, past), ("past_value", FLOAT, past),
                            ("seqlens", TensorProto.INT32, [b]),
                            ("total", TensorProto.INT32, [1])],
                   ["y", "present_key", "present_value"], threads, spinning, 21)
    run, values = runner(made, {
        "q": random(*q), "k": random(*kv), "v": random(*kv), "past_key": random(*past),
        "past_value": random(*past), "seqlens": numpy.full(b, tokens - 1, numpy.int32),
        "total": numpy.array([tokens], numpy.int32)}, ["y"])
    # The present is written where the past lies.
    binding = made.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("y")
    binding.bind_ortvalue_output("present_key", values["past_key"])
    binding.bind_ortvalue_output("present_value", values["past_value"])

    def run_shared():
        start = time.perf_counter()
        made.run_with_iobinding(binding)
        return time.perf_counter() - start
    return run_shared, values


PEERS = {"Attention": attention_operator, "MultiHeadAttention": multi_head_attention,
         "GroupQueryAttention": group_query_attention}
# Sequences, tokens, queries, heads, key/value heads, head size; how many times as fast to be.
SHAPES = [("decode", (8, 4096, 1, 32, 8, 128), 2.0), ("decode", (1, 4096, 1, 32, 8, 128), 2.0),
          ("prefill", (1, 2048, 2048, 16, 16, 64), 1.5),
          ("prefill", (1, 2048, 2048, 16, 16, 128), 1.5)]


class Ours:
    def __init__(self, program, threads):
        self.process = subprocess.Popen([program, "--threads", str(threads), "--on-request"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what, shape):
        print(what, *shape, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def run(self, shape):
        return self.ask("attend", shape)

    def floor(self, shape):
        """Seconds at the machine's limits, see on_request.h."""
        return self.ask("floor", shape)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--threads", type=int, default=len(__import__("os").sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    print(f"ONNX Runtime {onnxruntime.__version__}, {arguments.threads} threads")
    print("limit: how many times as fast as the peer the machine itself is: memory read once, or the "
          "arithmetic at the speed of oneDNN's largest product")
    print(f"{'benchmark':10}{'shape':44}{'peer':22}{'peer ms':>10}{'ours ms':>10}{'times':>7}"
          f"{'limit':>7}")
    lines = []
    ours = Ours(arguments.program, arguments.threads)
    for benchmark, shape, reach in SHAPES:
        b, tokens, queries, heads, kv_heads, size = shape
        text = f"{b} x {tokens} tokens, T={queries}, H={heads} G={kv_heads} d={size}"
        for name, make in PEERS.items():
            made = [make(shape, arguments.threads, spinning) for spinning in (True, False)]
            if None in made:
                continue
            spinning, waiting = (run for run, _values in made)
            spinning()
            waiting()
            ours.run(shape)
            rounds = []
            for _ in range(arguments.rounds):
                # Four times each, the best counts; ONNX Runtime's with spinning threads, its
                # default, and with waiting ones. Those that spin are quicker at short calls, but take
                # the cores from whoever comes in the tens of milliseconds after.
                peer, own, floor = [], [], []
                for _ in range(2):
                    peer.append(spinning())
                    time.sleep(0.2)
                    peer.append(waiting())
                    own += [ours.run(shape), ours.run(shape)]
                    floor.append(ours.floor(shape))
                rounds.append((min(peer), min(own), min(floor)))
            # The round whose ratio is the median (of an even number, the lower one).
            rounds.sort(key=lambda times: times[0] / times[1])
            peer, own, floor = rounds[(len(rounds) - 1) // 2]
            line = {"benchmark": benchmark, "shape": text, "peer": name, "peer_ms": peer * 1e3,
                    "ours_ms": own * 1e3, "times": peer / own, "limit": peer / floor,
                    "reach": reach}
            lines.append(line)
            print(f"{benchmark:10}{text:44}{name:22}{line['peer_ms']:10.2f}{line['ours_ms']:10.2f}"
                  f"{line['times']:7.2f}{line['limit']:7.2f}"
                  f"{'' if line['times'] >= reach else f'  missed {reach}'}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"onnxruntime": onnxruntime.__version__, "lines": lines}, file, indent=1)


if __name__ == "__main__":
    main()
