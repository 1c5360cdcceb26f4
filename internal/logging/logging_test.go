package logging_test

import (
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"

	"github.com/clew-dev/clew/internal/logging"
)

func TestWhatIsLogged(t *testing.T) {
	for level, wanted := range map[string]struct{ debug, info, errors bool }{
		"debug": {true, true, true}, "info": {false, true, true}, "warn": {false, false, true}, "error": {false, false, true},
	} {
		t.Run(level, func(t *testing.T) {
			log, err := logging.New(level, logging.JSON)
			if err != nil {
				t.Fatal(err)
			}
			sink := log.GetSink()
			if got := sink.Enabled(1); got != wanted.debug {
				t.Errorf("debug is logged: %t", got)
			}
			if got := sink.Enabled(0); got != wanted.info {
				t.Errorf("info is logged: %t", got)
			}
		})
	}
}

func TestALogThatCannotBeIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ level, format, want string }{
		"level":  {"loud", logging.JSON, `--log-level "loud" is not one of debug, info, warn, error`},
		"format": {"info", "xml", `--log-format "xml" is not one of json, text`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := logging.New(c.level, c.format); err == nil || err.Error() != c.want {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

func TestWhatServersSayOfConnectionsIsForDebugging(t *testing.T) {
	var lines []string
	to := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{Verbosity: 1})
	logging.Debug(to).Print("TLS handshake error: EOF")
	if len(lines) != 1 || !strings.Contains(lines[0], `"level"=1`) || !strings.Contains(lines[0], `"reason"="TLS handshake error: EOF"`) {
		t.Errorf("logged %q", lines)
	}
}
