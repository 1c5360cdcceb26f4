package agent

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Cause classifies a failure. It decides whether another attempt can help.
type Cause string

const (
	// CauseUnknown: nothing is known except that the agent failed.
	CauseUnknown Cause = ""
	// CauseUnauthorized: the model's API rejects the credentials.
	CauseUnauthorized Cause = "Unauthorized"
	// CauseOutOfCredit: the account has no credit or quota left.
	CauseOutOfCredit Cause = "OutOfCredit"
	// CauseRateLimited: the model's API limits the rate of requests.
	CauseRateLimited Cause = "RateLimited"
	// CauseModelUnavailable: the model's API fails, is overloaded or cannot be reached.
	CauseModelUnavailable Cause = "ModelUnavailable"
	// CauseInvalidOptions: the program rejects its arguments.
	CauseInvalidOptions Cause = "InvalidOptions"
	// CauseSessionUnknown: the program does not have the session that it should resume.
	CauseSessionUnknown Cause = "SessionUnknown"
	// CauseGaveUp: the agent stopped before the work was done, for example in a loop.
	CauseGaveUp Cause = "GaveUp"
	// CauseTooOld: the program is older than the oldest supported version.
	CauseTooOld Cause = "TooOld"
	// CauseProgramNotFound: the container does not contain the program.
	CauseProgramNotFound Cause = "ProgramNotFound"
	// CauseProgramNotExecutable: the program exists, but cannot be executed.
	CauseProgramNotExecutable Cause = "ProgramNotExecutable"
	// CauseIdle: the agent was terminated because it printed nothing for too long.
	CauseIdle Cause = "Idle"
	// CauseBudgetSpent: the daemon ended the agent, since a budget is spent.
	CauseBudgetSpent Cause = "BudgetSpent"
)

// Failure describes why a run of an agent failed.
type Failure struct {
	Cause Cause `json:"cause,omitempty"`
	// Message is the agent's own message.
	Message string `json:"message,omitempty"`
	// RetryAfter is the pause that the model's API asked for; 0 if none.
	RetryAfter time.Duration `json:"retryAfter,omitempty"`
}

// Outcome is what a run's output has said about its end so far.
type Outcome struct {
	// Done is true once the agent has given its final answer, or has reported that it
	// failed. What its processes do after that is not part of the task.
	Done bool `json:"done,omitempty"`
	// Failure is the last error that the agent reported; nil if there is none, or if
	// the agent has continued since.
	Failure *Failure `json:"failure,omitempty"`
	// Counted is true once the run has reported all tokens that it used.
	Counted bool `json:"counted,omitempty"`
}

// outcome is embedded by parsers to record a run's Outcome.
type outcome struct{ reported Outcome }

// Outcome implements Parser.
func (o *outcome) Outcome() Outcome { return o.reported }

// recordProgress records that the agent works, whatever it reported before.
func (o *outcome) recordProgress() { o.reported = Outcome{} }

// recordError records an error that the agent may still recover from.
func (o *outcome) recordError(f *Failure) { o.reported = Outcome{Failure: f} }

// recordEnd records the end of the run; f is nil if the agent gave an answer.
func (o *outcome) recordEnd(f *Failure) { o.reported = Outcome{Done: true, Failure: f} }

// statusCode finds the HTTP status in an agent's message about an API error.
var statusCode = regexp.MustCompile(`(?i)(?:\bAPI error: |\bstatus(?:[ _]?code)?:? |"code": ?|\bHTTP )([45][0-9]{2})\b`)

// errorTexts are parts of the error messages of APIs and CLIs, in lower case, with the
// most specific causes first.
var errorTexts = []struct {
	cause Cause
	texts []string
}{
	{CauseSessionUnknown, []string{"no conversation found with session id", "no previous sessions found", "session not found",
		"no rollout found for thread", "no saved session found", "invalid session identifier", "thread not found"}},
	{CauseOutOfCredit, []string{"credit balance is too low", "insufficient_quota", "billing_error", "exceeded your current quota",
		"quota exceeded. check your plan", "payment required", "insufficient credit", "insufficient balance", "usage limit", "credits are depleted"}},
	{CauseUnauthorized, []string{"authentication_error", "authentication_failed", "invalid x-api-key", "invalid api key", "incorrect api key",
		"invalid_api_key", "api key not valid", "unauthenticated", "unauthorized", "permission_error", "permission_denied",
		"please run /login", "not logged in", "invalid auth method", "no api key"}},
	{CauseRateLimited, []string{"rate_limit", "rate limit", "too many requests", "resource_exhausted"}},
	{CauseModelUnavailable, []string{"overloaded", "high demand", "api_error", "server_error", "internal server error", "bad gateway",
		"service unavailable", "gateway timeout", "econnrefused", "econnreset", "etimedout", "enotfound", "eai_again", "connection error",
		"connection refused", "fetch failed", "stream disconnected", "error sending request", "unable to connect", "request timed out"}},
}

// causeOf classifies an error by its HTTP status (0 if unknown) and its text.
func causeOf(status int, text string) Cause {
	lower := strings.ToLower(text)
	says := func(c Cause) bool {
		for _, t := range errorTexts {
			if t.cause == c {
				return slices.ContainsFunc(t.texts, func(w string) bool { return strings.Contains(lower, w) })
			}
		}
		return false
	}
	if status == 0 {
		if m := statusCode.FindStringSubmatch(text); m != nil {
			status, _ = strconv.Atoi(m[1])
		}
	}
	switch {
	case status == 402, status > 0 && says(CauseOutOfCredit) && retryAfter(text) == 0:
		return CauseOutOfCredit
	case status == 401, status == 403:
		return CauseUnauthorized
	case status == 429:
		return CauseRateLimited
	case status >= 500, status == 408:
		return CauseModelUnavailable
	}
	for _, t := range errorTexts {
		if says(t.cause) {
			return t.cause
		}
	}
	return CauseUnknown
}

// failure returns the Failure for an agent's message.
func failure(status int, text string) *Failure {
	return &Failure{Cause: causeOf(status, text), Message: Text([]byte(strings.TrimSpace(text))), RetryAfter: retryAfter(text)}
}

// rejectedOptions matches the beginning of the programs' errors about arguments.
var rejectedOptions = regexp.MustCompile(`(?im)^(?:error: )?(?:unknown (?:option|arguments?)\b|unexpected argument\b|unrecognized (?:option|argument)\b|invalid value\b.* for '-)`)

// usageText matches the usage that a program prints instead of an answer if it rejects
// its arguments.
var usageText = regexp.MustCompile(`(?m)^(?:Usage: |Positionals:|Options:$)`)

// LastWords are the last lines of a program whose events do not explain its failure.
type LastWords struct {
	Lines string
	// Began is true if the program printed an event, so it accepted its arguments.
	Began bool
	// Worked is true if the agent gave an answer or called a tool. From then on, lines
	// may be those of a tool, and prove nothing.
	Worked bool
}

// FailureOf classifies a failure by the last lines of an agent's program.
func FailureOf(a Adapter, words LastWords) *Failure {
	lines := words.Lines
	if !a.KnownErrors() || words.Worked {
		return &Failure{Message: Text([]byte(strings.TrimSpace(lines)))}
	}
	f := failure(0, lines)
	if f.Cause != CauseUnknown || words.Began {
		return f
	}
	if m := rejectedOptions.FindStringIndex(lines); m != nil {
		f.Cause = CauseInvalidOptions
		f.Message = strings.TrimSpace(lines[m[0]:])
	} else if usageText.MatchString(lines) {
		f.Cause = CauseInvalidOptions
	}
	return f
}

// pauses matches how APIs and CLIs say when to try again.
var pauses = regexp.MustCompile(`(?i)(?:(?:re)?try(?:ing)?(?: again)? (?:in|after) |"?retry(?:-after|Delay)"?: ?"?)([0-9]{1,6}(?:\.[0-9]{1,9})?) ?(ms\b|milliseconds\b|s\b|seconds\b|m\b|minutes\b|h\b|hours\b)?`)

// maxPause limits the pause that an API can ask for.
const maxPause = 6 * time.Hour

// retryAfter returns the pause that a text asks for; 0 if none.
func retryAfter(text string) time.Duration {
	m := pauses.FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0
	}
	unit := time.Second
	switch strings.ToLower(m[2]) {
	case "ms", "milliseconds":
		unit = time.Millisecond
	case "m", "minutes":
		unit = time.Minute
	case "h", "hours":
		unit = time.Hour
	}
	return min(time.Duration(n*float64(unit)), maxPause)
}

// apiMessage returns the message of an API error in JSON, which may follow other text.
// Without one, it returns the text itself.
func apiMessage(text string) string {
	i := strings.IndexByte(text, '{')
	if i < 0 {
		return text
	}
	var e struct {
		Message string `json:"message"`
		Error   struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	decoder := json.NewDecoder(strings.NewReader(text[i:]))
	if decoder.Decode(&e) != nil {
		return text
	}
	if e.Error.Message != "" {
		return e.Error.Message
	}
	if e.Message != "" {
		return e.Message
	}
	return text
}

// signals are the signals that end a process, by their numbers.
var signals = map[int]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
	9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}

// ExitMeaning describes what an exit code means.
func ExitMeaning(code int) string {
	name, signaled := signals[code-128]
	switch {
	case code == 126:
		return "the agent's program cannot be executed (exit code 126): check the container's command and image"
	case code == 127:
		return "the agent's program was not found (exit code 127): check the container's command and image"
	case code == 137:
		return "the agent was killed by signal 9 (SIGKILL, exit code 137), perhaps because it ran out of memory"
	case signaled:
		return fmt.Sprintf("the agent was killed by signal %d (%s, exit code %d)", code-128, name, code)
	}
	return fmt.Sprintf("the agent exited with code %d", code)
}

// cutByKill matches the result of a tool whose process was killed.
var cutByKill = regexp.MustCompile(`(?i)(?:\bexit(?:ed with)?(?: code| status)?:? |\[exit code )(?:130|137|143)\b|\bsignal:? (?:2|9|15|SIGINT|SIGKILL|SIGTERM)\b|\bterminated by signal\b|\bcommand was (?:aborted|interrupted|killed)\b|\buser aborted the command\b`)

// maxKillText is how much of a result is searched at either end.
const maxKillText = 512

// WasKilled reports whether a tool's result says that its process was killed. An agent
// that is being killed itself may print such a result for an interrupted call.
func WasKilled(output string) bool {
	if len(output) > 2*maxKillText {
		return cutByKill.MatchString(output[:maxKillText]) || cutByKill.MatchString(output[len(output)-maxKillText:])
	}
	return cutByKill.MatchString(output)
}
