// Package logging creates the logger of Clew's processes: one library, zap behind logr, and
// one style of lines. A message is constant, begins in lower case and has no full stop; what
// varies is in keys and values.
package logging

import (
	"fmt"
	"log"
	"slices"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// LevelHelp is the help text of the flag --log-level.
const LevelHelp = "what is logged: debug, info, warn or error"

// levels are the values of --log-level. zap would take others too, such as fatal, which
// would silence errors.
var levels = []string{"debug", "info", "warn", "error"}

// The formats of log lines, as the flag --log-format names them.
const (
	// JSON writes each line as a JSON object.
	JSON = "json"
	// Text writes lines for people who read a container's log.
	Text = "text"
)

// Options say what is logged, and how.
type Options struct {
	// Level is debug, info, warn or error, as in the flag --log-level. logr has no
	// warnings, so warn logs only errors, as error does.
	Level string
	// Format is JSON or Text.
	Format string
	// Sample drops lines when a message occurs more than 100 times a second, except for
	// every 100th, since tenants can cause any number of them. A process whose log is an
	// audit does not sample.
	Sample bool
}

// New returns a logger that writes to standard error.
func New(o Options) (logr.Logger, error) {
	config := zap.NewProductionConfig()
	if !slices.Contains(levels, o.Level) {
		return logr.Logger{}, fmt.Errorf("--log-level %q is not one of debug, info, warn, error", o.Level)
	}
	if err := config.Level.UnmarshalText([]byte(o.Level)); err != nil {
		return logr.Logger{}, fmt.Errorf("--log-level: %w", err)
	}
	config.DisableStacktrace, config.DisableCaller = true, true
	if !o.Sample {
		config.Sampling = nil
	}
	config.EncoderConfig.EncodeTime = zapcore.ISO8601TimeEncoder
	switch o.Format {
	case JSON:
	case Text:
		config.Encoding = "console"
	default:
		return logr.Logger{}, fmt.Errorf("--log-format %q is not one of json, text", o.Format)
	}
	made, err := config.Build()
	if err != nil {
		return logr.Logger{}, fmt.Errorf("start logging: %w", err)
	}
	return zapr.NewLogger(made), nil
}

// Debug returns a standard library logger, for the servers of net/http, that logs at debug
// level: errors of connections, which strangers can cause, matter only when debugging.
func Debug(to logr.Logger) *log.Logger { return log.New(lines{to}, "", 0) }

// lines is a writer that logs each line written to it.
type lines struct{ to logr.Logger }

// Write implements io.Writer.
func (l lines) Write(line []byte) (int, error) {
	l.to.V(1).Info("a connection failed", "reason", string(line[:max(0, len(line)-1)]))
	return len(line), nil
}
