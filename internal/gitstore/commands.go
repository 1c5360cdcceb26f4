package gitstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
)

// maxCommandBytes bounds the command list in front of a pack: some thousands
// of refs.
const maxCommandBytes = 1 << 20

// errNotCommands is returned for a body that does not begin as git's does.
var errNotCommands = errors.New("the body does not begin with a list of ref updates and a pack as git push sends them")

var commandLine = regexp.MustCompile(`^([^ ]*) ([^ ]*) ([^\x00\n]+)$`)

// pushHead is the beginning of a push request, before its pack.
type pushHead struct {
	Commands []Command
	// Raw are the bytes that were read, to be handed on to git unchanged.
	Raw []byte
	// SideBand says that the client shows messages sent beside the report.
	SideBand bool
	// Objects is how many the pack says that it holds.
	Objects uint32
}

// readPushHead reads the ref updates at the start of a git-receive-pack
// request, and the header of the pack that follows unless all of them are
// deletions. It takes exactly what git
// push sends (no signed and no shallow pushes, which the gitstore does not
// offer), so that git cannot understand the same bytes in another way. An
// empty list is what git sends to probe.
func readPushHead(body io.Reader) (pushHead, error) {
	var head pushHead
	for {
		line, raw, err := readPacket(body, maxCommandBytes-len(head.Raw))
		head.Raw = append(head.Raw, raw...)
		if err != nil {
			return head, err
		}
		if line == nil {
			return head, head.readPackHeader(body)
		}
		command, capabilities, hasCapabilities := bytes.Cut(line, []byte{0})
		if hasCapabilities {
			if len(head.Commands) > 0 {
				return head, errNotCommands
			}
			head.SideBand = bytes.Contains(capabilities, []byte("side-band-64k"))
		}
		match := commandLine.FindSubmatch(bytes.TrimSuffix(command, []byte{'\n'}))
		if match == nil || !isObjectID(string(match[1])) || !isObjectID(string(match[2])) {
			return head, errNotCommands
		}
		head.Commands = append(head.Commands, Command{Old: string(match[1]), New: string(match[2]), Ref: string(match[3])})
	}
}

// readPackHeader reads how many objects are to come.
func (h *pushHead) readPackHeader(body io.Reader) error {
	brings := slices.ContainsFunc(h.Commands, func(c Command) bool { return !isZero(c.New) })
	if !brings {
		return nil
	}
	var header [12]byte
	n, err := io.ReadFull(body, header[:])
	h.Raw = append(h.Raw, header[:n]...)
	if err != nil || !bytes.HasPrefix(header[:], []byte("PACK")) {
		return errNotCommands
	}
	h.Objects = binary.BigEndian.Uint32(header[8:])
	return nil
}

// readPacket reads one pkt-line of at most limit bytes in all. The line is nil
// for a flush packet; raw are the bytes read.
func readPacket(r io.Reader, limit int) (line, raw []byte, err error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errNotCommands, err)
	}
	length, err := strconv.ParseUint(string(size[:]), 16, 16)
	if err != nil {
		return nil, size[:], errNotCommands
	}
	if length == 0 {
		return nil, size[:], nil
	}
	if length <= 4 || int(length) > limit {
		return nil, size[:], errNotCommands
	}
	raw = make([]byte, length)
	copy(raw, size[:])
	if _, err := io.ReadFull(r, raw[4:]); err != nil {
		return nil, raw, fmt.Errorf("%w: %w", errNotCommands, err)
	}
	return raw[4:], raw, nil
}

// packet returns payload as one pkt-line.
func packet(payload []byte) []byte {
	return append(fmt.Appendf(nil, "%04x", len(payload)+4), payload...)
}
