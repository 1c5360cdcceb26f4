package keptspec

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// chosen are the maps of a pod template whose keys users choose.
var chosen = map[string]bool{
	"annotations": true, "labels": true, "matchLabels": true, "nodeSelector": true, "volumeAttributes": true, "options": true,
	"limits": true, "requests": true,
}

// keeps reports whether a text in a field of a pod template or repository is kept.
func keeps(field, text string) bool {
	if shape := shapes[field]; shape != nil && shape.MatchString(text) {
		return true
	}
	return Harmless(field, text)
}

// Shapes of fields whose texts are kept whatever they say: names of objects and of their keys, and
// what the API server has checked to be of such a shape.
var (
	objectName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,252}$`)
	shapes     = map[string]*regexp.Regexp{
		"name": objectName, "key": objectName, "secretName": objectName, "claimName": objectName, "serviceAccountName": objectName,
		"serviceAccount": objectName, "storageClassName": objectName, "priorityClassName": objectName, "runtimeClassName": objectName,
		"nodeName": objectName, "resourceClaimName": objectName, "resourceClaimTemplateName": objectName, "containerName": objectName,
		"driver": objectName, "topologyKey": objectName, "resource": objectName,
		"fieldPath": regexp.MustCompile(`^[a-z]+\.[A-Za-z]+(\['[A-Za-z0-9._/-]{1,128}'\])?$`),
		"image":     regexp.MustCompile(`^[a-z0-9][A-Za-z0-9._:/-]{0,511}(@sha256:[0-9a-f]{64})?$`),
		"ref":       regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64}|[A-Za-z0-9][A-Za-z0-9._/-]{0,254})$`),
		// Without a user's password, and without a query.
		"url":   regexp.MustCompile(`^(https?://[^/@?#]+/|ssh://[^/:@]+@|[^/:@]+@)[^?#@]*$`),
		"level": regexp.MustCompile(`^s[0-9]{1,2}(-s[0-9]{1,2})?(:[c0-9,.]{1,64})?$`), // of SELinux
	}
	quantity = regexp.MustCompile(`^[0-9]{1,18}(\.[0-9]{1,9})?(m|k|[KMGTPE]i?)?$`)
)

// secretName finds names of secrets, told those that are as clear when only a space follows, and
// described what is said about one, such as its type.
var (
	secretName = regexp.MustCompile(`(?i)token|secret|passw|passphrase|pwd|api[_-]?key|credential|authorization|bearer|cookie|jwt|` +
		`(^|[^a-z])(key|keys|auth|pass|pat|pin|otp|dsn)($|[^a-z])|[a-z](key|auth|pass)$`)
	told      = regexp.MustCompile(`(?i)token|secret|passw|passphrase|pwd|api[_-]?key|access[_-]?key|credential|authorization|bearer`)
	described = regexp.MustCompile(`(?i)[_.-](types?|modes?|methods?|schemes?|providers?|names?|ids?|urls?|hosts?|ports?|files?|paths?|dirs?|ttl|timeout|size|limit|count|budget|enabled|disabled)$|env_key$`)
	// counted are numbers of tokens, which are settings of models.
	counted = regexp.MustCompile(`(?i)tokens`)
	number  = regexp.MustCompile(`^[+-]?[0-9]{1,9}(\.[0-9]{1,9})?$`)
	boolean = regexp.MustCompile(`(?i)^(true|false|yes|no|on|off|none|auto|always|never)$`)
	// secretFile is a path, as the value of a variable such as GOOGLE_APPLICATION_CREDENTIALS.
	secretFile = regexp.MustCompile(`^(/[A-Za-z0-9._-]+){2,}$`)
	fileName   = regexp.MustCompile(`(?i)credentials$`)
	// checksum is how charts and others have pods replaced when a ConfigMap changes.
	checksum = regexp.MustCompile(`^[0-9a-f]{40,64}$`)
	userID   = regexp.MustCompile(`^[0-9]+:[0-9]+$`)
)

// Harmless reports whether a value may be kept under a name: it is made of words, numbers and paths
// alone, and neither the name nor the value says that it is a secret, or contains one.
func Harmless(name, value string) bool {
	if value == "" || boolean.MatchString(value) || strings.HasPrefix(name, "checksum/") && checksum.MatchString(value) {
		return true
	}
	return allows(name, value) && (quantity.MatchString(value) || !strings.ContainsFunc(value, unusual) && words(value))
}

// harmlessWord reports whether a word of a command may be kept, which may be a whole script.
func harmlessWord(option, word string) bool {
	if word == "" {
		return true
	}
	return allows(option, word) && !strings.ContainsFunc(word, notInScripts) && words(word)
}

// allows reports whether a value may have a name.
func allows(name, value string) bool {
	switch {
	case (name == "u" || name == "user") && strings.Contains(value, ":"): // with the password, for curl and the like
		return userID.MatchString(value)
	case !secretName.MatchString(name) || described.MatchString(name) || boolean.MatchString(value):
		return true
	case counted.MatchString(name) && number.MatchString(value):
		return true
	}
	return fileName.MatchString(name) && secretFile.MatchString(value)
}

// unusual reports whether a value that is kept cannot contain a character.
func unusual(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(" _./:,=+-@", r)
}

// notInScripts reports whether a script that is kept cannot contain a character.
func notInScripts(r rune) bool {
	return r != '\n' && r != '\t' && r != ' ' && !unicode.IsGraphic(r)
}

// option is an option whose value is the next word of the command.
var option = regexp.MustCompile(`^--?([A-Za-z][A-Za-z0-9_.-]*)$`)

// optionOf returns the name of an option whose value follows; empty for any other word.
func optionOf(word string) string {
	if found := option.FindStringSubmatch(word); found != nil {
		return found[1]
	}
	return ""
}

var (
	// pair finds a name, what is between, and the beginning of the value that is assigned to it, or
	// that follows it: no more of it than what allows can accept, since each value is looked at again
	// as the name of the next one.
	pair = regexp.MustCompile(`(-*)([A-Za-z][A-Za-z0-9_.-]*)["'\]]*([ \t]*[=:][ \t]*|[ \t]+)["']*([^\s"']{1,128})`)
	// inURL finds a user's name or password in a URL.
	inURL = regexp.MustCompile(`://[^/\s"']*@`)
	// reference is a value that a variable has, perhaps after the scheme of an Authorization.
	reference = regexp.MustCompile(`^((?i:bearer|basic|token)[ \t]+)?\$[({A-Za-z_]`)
	// separated parts a text where shells and most formats do; piece is a run of letters and digits.
	separated = regexp.MustCompile("[\\s\"'`;|(){}<>,]+")
	piece     = regexp.MustCompile(`[\p{L}\p{N}]+`)
)

// words reports whether a text is made of words and short numbers, and names no secret.
func words(text string) bool {
	if inURL.MatchString(text) || strings.Contains(text, "-----BEGIN") || assignsSecret(text) {
		return false
	}
	return !slices.ContainsFunc(separated.Split(text, -1), func(part string) bool { return !wordsOnly(part) })
}

// assignsSecret reports whether a text has a value with a name that says it is a secret.
func assignsSecret(text string) bool {
	for {
		at := pair.FindStringSubmatchIndex(text)
		if at == nil {
			return false
		}
		group := func(i int) string { return text[at[2*i]:at[2*i+1]] }
		dashes, name, between, value := group(1), group(2), group(3), group(4)
		assigned := dashes != "" || strings.ContainsAny(between, "=:") || told.MatchString(name)
		read := variable(text, at[4]) || !piece.MatchString(value) || reference.MatchString(text[at[8]:])
		if assigned && !read && !allows(name, value) {
			return true
		}
		text = text[at[8]:] // a value may be the name of the next one
	}
}

// variable reports whether what begins at a place of a text is the name of a variable that is read.
func variable(text string, at int) bool {
	return strings.HasSuffix(text[:at], "$") || strings.HasSuffix(text[:at], "${")
}

// Characters that passwords contain more often than words are joined by them; in a URL or a shell,
// words are joined by those of the second list, too.
const loud, joining = "!#$%^*~@+\\", "?&="

// wordsOnly reports whether a part of a text is made of words and short numbers: few of its pieces are
// letters and digits mixed, or as short and with as many capitals as those of a generated password.
func wordsOnly(part string) bool {
	mixed, odd := 0, 0
	for _, at := range piece.FindAllStringIndex(part, -1) {
		run := part[at[0]:at[1]]
		kind := kindOf(run)
		switch {
		case kind == other:
			return false
		case kind == mixture:
			mixed++
		}
		if !variable(part, at[0]) && (kind == mixture || kind == plainWord && hasShortParts(run)) {
			odd++
		}
	}
	var louds int
	for _, r := range loud {
		if strings.ContainsRune(part, r) {
			louds++
		}
	}
	joined := louds > 0 || strings.ContainsAny(part, joining)
	return mixed <= 2 && (odd < 2 || !joined) && (odd < 1 || louds < 2)
}

// hasShortParts reports whether a word with capitals has parts of one or two letters.
func hasShortParts(word string) bool {
	return strings.ToLower(word) != word && shortPart.MatchString(word)
}

// kind of a run of letters and digits.
type kind int

const (
	other kind = iota
	plainWord
	plainNumber
	mixture
)

var (
	digits = regexp.MustCompile(`^[0-9]{1,9}$`)
	// oneCase is a word in one case, or with a capital; camel is words that are joined by capitals.
	oneCase   = regexp.MustCompile(`^([A-Z]?[a-z]{1,23}|[A-Z]{1,24})$`)
	camel     = regexp.MustCompile(`^[a-z]{0,16}([A-Z][a-z]{1,15}){1,6}([A-Z]{2,3})?$`)
	shortPart = regexp.MustCompile(`^[A-Za-z]{1,2}$|^[a-z]{1,2}[A-Z]|[A-Z][a-z]([A-Z]|$)`)
	// together are letters and a number in a word, such as sha256, 512Mi, 4o or Xmx512m.
	together = regexp.MustCompile(`^([A-Za-z]*)([0-9]{1,4})([A-Za-z]*)$`)
	version  = regexp.MustCompile(`^v[0-9]{1,2}((alpha|beta|rc)[0-9]{1,2})?$`)
	// consonants are more of them than words have.
	consonants = regexp.MustCompile(`(?i)[bcdfghjklmnpqrstvwxz]{6}`)
)

// kindOf returns the kind of a run.
func kindOf(run string) kind {
	switch {
	case digits.MatchString(run):
		return plainNumber
	case isWord(run):
		return plainWord
	case version.MatchString(run):
		return mixture
	}
	parts := together.FindStringSubmatch(run)
	if parts == nil || len(run) > 12 {
		return other
	}
	for _, letters := range []string{parts[1], parts[3]} {
		if letters != "" && !isWord(letters) {
			return other
		}
	}
	return mixture
}

// isWord reports whether letters are a word, or some that are joined. Those of other alphabets are.
func isWord(letters string) bool {
	if strings.ContainsFunc(letters, func(r rune) bool { return r > unicode.MaxASCII }) {
		return !strings.ContainsFunc(letters, unicode.IsDigit) && len(letters) <= 64
	}
	return (oneCase.MatchString(letters) || camel.MatchString(letters)) && !consonants.MatchString(letters)
}
