// Package logging creates the logger of Clew's processes: one library, zap behind logr, and
// one style of lines. A message is constant, begins in lower case and has no full stop; what
// varies is in keys and values.
package logging

import (
	"fmt"
	"log"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// LevelHelp is the help text of the flag --log-level.
const LevelHelp = "what is logged: debug, info, warn or error"

// The formats of log lines, as the flag --log-format names them.
const (
	// JSON writes each line as a JSON object.
	JSON = "json"
	// Text writes lines for people who read a container's log.
	Text = "text"
)

// New returns a logger that writes to standard error, with a level and a format as in the
// flags --log-level and --log-format. logr has no warnings, so warn logs only errors, as
// error does.
func New(level, format string) (logr.Logger, error) {
	config := zap.NewProductionConfig()
	if err := config.Level.UnmarshalText([]byte(level)); err != nil {
		return logr.Logger{}, fmt.Errorf("--log-level %q is not one of debug, info, warn, error", level)
	}
	// Without sampling, which would drop lines when there are many.
	config.DisableStacktrace, config.DisableCaller, config.Sampling = true, true, nil
	config.EncoderConfig.EncodeTime = zapcore.ISO8601TimeEncoder
	switch format {
	case JSON:
	case Text:
		config.Encoding = "console"
	default:
		return logr.Logger{}, fmt.Errorf("--log-format %q is not one of json, text", format)
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
