package keptspec

import (
	"regexp"
	"strings"
)

// minSecret is the length of the shortest value that is taken for a secret because of its name,
// in bytes: as in the agent's output, shorter ones are ordinary words.
const minSecret = 6

var (
	secretName = regexp.MustCompile(`(?i)token|secret|passw|passphrase|pwd|api[_-]?key|credential|authorization|bearer|cookie|jwt|` +
		`(^|[^a-z])(key|keys|auth|pass|pat|dsn)($|[^a-z])|[a-z](key|auth|pass)$`)
	// count is a number of tokens, which is a setting of models.
	count = regexp.MustCompile(`^[0-9]{1,9}$`)
	// secretValue finds user names and passwords in URLs, private keys, assignments of secrets,
	// JSON web tokens, and the tokens of well-known services.
	secretValue = regexp.MustCompile(`://[^/@\s]+@|-----BEGIN|(?i:passw(or)?d|pwd|secret|token|api[_-]?key|accountkey)["']?\s*[=:]\s*\S|` +
		`\beyJ[A-Za-z0-9_-]{8,}\.|` +
		`\b(sk|rk|pk)[-_][A-Za-z0-9_-]{8,}|\b(ghp|gho|ghu|ghs|ghr|hf|npm|glrt)_[A-Za-z0-9]{8,}|github_pat_|glpat-|xox[abeprs]-|\b(AKIA|ASIA|AIza)[A-Za-z0-9_-]{8,}|\bya29\.`)
	// random finds long runs that may be random, as most keys are.
	random = regexp.MustCompile(`[A-Za-z0-9+=]{20,}`)
)

// nameLooksSecret reports whether a value of a name is likely a secret.
func nameLooksSecret(name, value string) bool {
	if !secretName.MatchString(name) || len(value) < minSecret {
		return false
	}
	return !strings.Contains(strings.ToLower(name), "tokens") || !count.MatchString(value)
}

// valueLooksSecret reports whether a value is likely a secret, or has one in it.
func valueLooksSecret(value string) bool {
	if secretValue.MatchString(value) {
		return true
	}
	for _, run := range random.FindAllString(value, -1) {
		letters := strings.ContainsFunc(run, func(r rune) bool { return r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' })
		if letters && strings.ContainsAny(run, "0123456789") {
			return true
		}
	}
	return false
}
