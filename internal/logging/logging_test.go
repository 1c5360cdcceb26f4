package logging_test

import (
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"

	"github.com/clew-dev/clew/internal/logging"
)

func TestWhatIsLogged(t *testing.T) {
	for level, want := range map[string]struct{ debug, info bool }{
		"debug": {true, true}, "info": {false, true}, "warn": {false, false}, "error": {false, false},
	} {
		t.Run(level, func(t *testing.T) {
			log, err := logging.New(logging.Options{Level: level, Format: logging.JSON})
			if err != nil {
				t.Fatal(err)
			}
			sink := log.GetSink()
			if got := sink.Enabled(1); got != want.debug {
				t.Errorf("debug lines are logged: %t, want %t", got, want.debug)
			}
			if got := sink.Enabled(0); got != want.info {
				t.Errorf("info lines are logged: %t, want %t", got, want.info)
			}
		})
	}
}

func TestInvalidLevelsAndFormatsAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ level, format, want string }{
		"level":           {"loud", logging.JSON, `--log-level "loud" is not one of debug, info, warn, error`},
		"no level":        {"", logging.JSON, `--log-level "" is not one of debug, info, warn, error`},
		"zap's own level": {"fatal", logging.JSON, `--log-level "fatal" is not one of debug, info, warn, error`},
		"format":          {"info", "xml", `--log-format "xml" is not one of json, text`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := logging.New(logging.Options{Level: c.level, Format: c.format}); err == nil || err.Error() != c.want {
				t.Errorf("New returned %v, want %s", err, c.want)
			}
		})
	}
}

func TestConnectionErrorsAreLoggedAtDebugLevel(t *testing.T) {
	var lines []string
	to := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{Verbosity: 1})
	logging.Debug(to).Print("TLS handshake error: EOF")
	if len(lines) != 1 {
		t.Fatalf("logged %d lines, want 1: %q", len(lines), lines)
	}
	for _, want := range []string{`"level"=1`, `"reason"="TLS handshake error: EOF"`} {
		if !strings.Contains(lines[0], want) {
			t.Errorf("the logged line %q does not contain %s", lines[0], want)
		}
	}
}
