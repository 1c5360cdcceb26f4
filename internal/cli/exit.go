package cli

import "errors"

// coded is an error with an exit code of its own.
type coded struct {
	error
	code int
}

// Unwrap returns the error.
func (c coded) Unwrap() error { return c.error }

// errDiffers ends a command with --exit-code when there are differences: an answer, which is
// not printed as an error.
var errDiffers = errors.New("there are differences")

// Exit returns the exit code for an error of a command, and whether the error is to be
// printed. 0 stands for no error.
func Exit(err error) (code int, print bool) {
	var c coded
	switch {
	case err == nil:
		return 0, false
	case errors.Is(err, errDiffers):
		return 1, false
	case errors.As(err, &c):
		return c.code, true
	}
	return 1, true
}
