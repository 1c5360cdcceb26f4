package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
)

// pager is a program that shows text page by page. Nil shows nothing.
type pager struct {
	command *exec.Cmd
	in      io.WriteCloser
}

// errPagerLeft ends a command whose pager the user has left.
var errPagerLeft = errors.New("the pager was left")

// hasEnv reports whether an environment variable is set, even if it is empty.
func hasEnv(name string) bool {
	_, set := os.LookupEnv(name)
	return set
}

// startPager starts the program that the user chose, or less. It returns nil if the user chose
// none, or if it cannot be started.
//
// An interrupt belongs to the pager, which may only stop a search: so it must not be killed
// when the command is interrupted, which would also leave the terminal without echo.
func startPager(out, errOut io.Writer, chosen string, isChosen bool) *pager {
	words := strings.Fields(chosen)
	if !isChosen {
		words = []string{"less"}
	}
	if len(words) == 0 || words[0] == "cat" {
		return nil
	}
	command := exec.CommandContext(context.Background(), words[0], words[1:]...)
	command.Stdout, command.Stderr = out, errOut
	command.Env = os.Environ()
	if !hasEnv("LESS") {
		command.Env = append(command.Env, "LESS=FRX")
	}
	in, err := command.StdinPipe()
	if err != nil || command.Start() != nil {
		return nil
	}
	return &pager{command, in}
}

func (p *pager) started() bool { return p != nil }

// to returns where text is written: the pager, or out without one.
func (p *pager) to(out io.Writer) io.Writer {
	if p == nil {
		return out
	}
	return p
}

// Write implements io.Writer. It fails with errPagerLeft once the user has left the pager.
func (p *pager) Write(text []byte) (int, error) {
	n, err := p.in.Write(text)
	if err != nil {
		return n, errPagerLeft
	}
	return n, nil
}

// wait returns when the user has left the pager. How it ended says nothing about the command.
func (p *pager) wait() {
	if p == nil {
		return
	}
	_ = p.in.Close()
	_ = p.command.Wait()
}
