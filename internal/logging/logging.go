// Package logging makes the log of Clew's processes: one library, zap behind logr, and
// one shape of lines. A message begins in lower case and has no full stop; what varies
// is in keys and values.
package logging

import (
	"fmt"
	"log"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Level is the help of a flag --log-level.
const Level = "what is logged: debug, info, warn or error"

// The formats of a line.
const (
	JSON = "json"
	Text = "text" // for people who read a container's log
)

// New makes a log that writes to standard error, from a level and a format as the flags
// --log-level and --log-format have them. logr knows no warnings: warn leaves errors
// alone, as error does.
func New(level, format string) (logr.Logger, error) {
	config := zap.NewProductionConfig()
	if err := config.Level.UnmarshalText([]byte(level)); err != nil {
		return logr.Logger{}, fmt.Errorf("--log-level %q is not one of debug, info, warn, error", level)
	}
	// Nothing is left out, however much there is.
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

// Debug is a log of the standard library's, for the servers of net/http: what strangers
// do to connections is of use only to who looks for it.
func Debug(to logr.Logger) *log.Logger { return log.New(lines{to}, "", 0) }

type lines struct{ to logr.Logger }

func (l lines) Write(line []byte) (int, error) {
	l.to.V(1).Info("a connection failed", "reason", string(line[:max(0, len(line)-1)]))
	return len(line), nil
}
