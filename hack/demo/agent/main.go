// Command replay is an agent without a model: it carries out a list of tool calls in
// the working directory, and prints the JSON lines that Clew understands. The demo and
// tests use it.
//
//	replay --calls=40 --delay=400ms --check     calls generated from --seed
//	replay script.json                          calls from a script
//
// A script is a JSON list of calls: {"name": NAME, "input": {…}} with
// write_file{path, content}, append_file{path, content}, delete_file{path},
// move_file{from, to}, shell{command}; or {"message": TEXT}.
//
// Its only memory is what Clew gives back to it: it reads the conversation so far,
// continues with the first call without an answer, and repeats an interrupted call.
// Every call is idempotent.
//
// With --check it refuses to work if its memory and the files disagree: the tree must
// contain what the answered calls produce, except for the call that was in progress. So
// it detects whether the state is correct after a killed pod, a lost volume, a rewind or
// a fork. With --torn it also expects a power failure, which damages files that were not
// synced: it repairs what calls without an answer have written.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// exitMismatch is the exit code if memory and files disagree.
const exitMismatch = 42

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	var mismatch *mismatchError
	switch {
	case err == nil:
	case errors.As(err, &mismatch):
		fmt.Fprintln(os.Stderr, "replay:", err)
		os.Exit(exitMismatch)
	case errors.Is(err, context.Canceled):
		os.Exit(128 + int(syscall.SIGTERM))
	default:
		fmt.Fprintln(os.Stderr, "replay:", err)
		os.Exit(1)
	}
}

// options are the flags and the argument.
type options struct {
	calls  int
	delay  time.Duration
	seed   uint64
	check  bool
	torn   bool
	failAt int
	script string
}

// parse parses the flags and the argument.
func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("replay", flag.ContinueOnError)
	flags.IntVar(&o.calls, "calls", 20, "number of calls to generate")
	flags.DurationVar(&o.delay, "delay", 200*time.Millisecond, "pause before each call")
	flags.Uint64Var(&o.seed, "seed", 1, "seed of the generated calls")
	flags.BoolVar(&o.check, "check", false, "fail if memory and files disagree")
	flags.BoolVar(&o.torn, "torn", false, "repair what calls without an answer have written, as after a power failure")
	flags.IntVar(&o.failAt, "fail-at", 0, "fail before this call, in the first attempt only")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.script = flags.Arg(0)
	if flags.NArg() > 1 || o.calls < 0 {
		return o, errors.New("usage: replay [flags] [script.json]")
	}
	return o, nil
}

// run carries out the plan from where the conversation ends.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	var plan plan = generated{calls: o.calls, seed: o.seed}
	if o.script != "" {
		if plan, err = readScript(o.script); err != nil {
			return err
		}
	}
	memory, err := readMemory(os.Getenv("CLEW_CONVERSATION"))
	if err != nil {
		return err
	}
	state := stateFile(filepath.Join(os.Getenv("HOME"), ".replay", "state.json"))
	if o.check {
		check := check
		if o.torn {
			check = repair
		}
		if err := check(plan, memory.answered, state, os.DirFS(".")); err != nil {
			return err
		}
	}
	agent := &agent{plan: plan, out: bufio.NewWriter(stdout), state: state, delay: o.delay}
	if o.failAt > 0 && os.Getenv("CLEW_ATTEMPT") == "1" {
		agent.failAt = o.failAt
	}
	return agent.work(ctx, memory)
}
