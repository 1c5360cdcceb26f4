// Command forbidden runs as a task's agent, and tries once each thing that such an agent must
// not be able to do with Clew's tools and on the pod's socket. The end-to-end tests read from its
// messages what was answered.
//
//	forbidden worker         as a task that has tools for itself only
//	forbidden supervisor     as a supervisor that may make one child
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if len(os.Args) != 2 || os.Args[1] != "worker" && os.Args[1] != "supervisor" {
		fmt.Fprintln(os.Stderr, "usage: forbidden worker|supervisor")
		os.Exit(2)
	}
	if err := tryAll(ctx, forbidden(os.Args[1] == "supervisor"), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "forbidden:", err)
		os.Exit(1)
	}
}

// The words that begin what is said of an attempt.
const (
	refused    = "refused"
	carriedOut = "CARRIED OUT"
	allowed    = "allowed"
)

// attempt is something that an agent must not be able to do.
type attempt struct {
	what string
	// try does it, and returns what came back. An error says why it was refused.
	try func(context.Context) (answer string, err error)
}

// forbidden returns what a worker, or a supervisor, tries.
func forbidden(supervisor bool) []attempt {
	calls := workersCalls()
	if supervisor {
		calls = supervisorsCalls()
	}
	var all []attempt
	for _, c := range calls {
		all = append(all, attempt{c.String(), c.try})
	}
	return append(all, overTheSocket()...)
}

// tryAll tries everything, and prints for each attempt a message of the agent: refused,
// carried out or allowed, what was tried, and the answer, with tabs between them.
func tryAll(ctx context.Context, attempts []attempt, out io.Writer) error {
	for _, a := range attempts {
		verdict := carriedOut
		answer, err := a.try(ctx)
		var may *allowedError
		switch {
		case errors.As(err, &may):
			verdict, answer = allowed, may.answer
		case err != nil:
			verdict, answer = refused, err.Error()
		}
		text := strings.Join([]string{verdict, a.what, strings.Join(strings.Fields(answer), " ")}, "\t")
		line, err := json.Marshal(map[string]string{"type": "message", "role": "assistant", "text": text})
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "%s\n", line); err != nil {
			return err
		}
	}
	return nil
}

// allowedError is the answer to what the agent may do.
type allowedError struct{ answer string }

func (e *allowedError) Error() string { return e.answer }
