package postgres

import (
	"reflect"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
)

// filled sets everything that a value can hold: each text to the given one, each list and
// map to n elements. Values that are not text are left alone.
func filled(v reflect.Value, text string, n int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		filled(v.Elem(), text, n)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for _, field := range v.Fields() {
			filled(field, text, n)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(text))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			filled(v.Index(i), text, n)
		}
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{}))
		for i := range n {
			v.SetMapIndex(reflect.ValueOf(strings.Repeat("k", i)+text), reflect.ValueOf(text))
		}
	}
}

// texts returns the total length of a value's texts.
func texts(v reflect.Value) (n int64) {
	switch v.Kind() {
	case reflect.String:
		return int64(v.Len())
	case reflect.Pointer:
		if !v.IsNil() {
			return texts(v.Elem())
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return 0
		}
		for _, field := range v.Fields() {
			n += texts(field)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return int64(v.Len())
		}
		for i := range v.Len() {
			n += texts(v.Index(i))
		}
	case reflect.Map:
		for iter := v.MapRange(); iter.Next(); {
			n += int64(iter.Key().Len() + iter.Value().Len())
		}
	}
	return n
}

// recordKinds are the kinds of records that take space.
var recordKinds = []string{"Message", "Checkpoint", "Event", "Piece", "Move", "Gap"}

// full returns a record of a kind, with all fields set.
func full(kind, text string, n int) (r history.Record) {
	filled(reflect.ValueOf(&r).Elem().FieldByName(kind), text, n)
	if c := r.Checkpoint; c != nil {
		// The store sets these itself.
		c.TaskUID, c.Refused, c.Digest, c.Position, c.Integrity = "", "", "", history.Position{}, history.Integrity{}
	}
	return r
}

var _ = Describe("The cost of a record", func() {
	for _, kind := range recordKinds {
		Describe("of kind "+kind, func() {
			It("counts all that the record holds", func() {
				r := full(kind, strings.Repeat("x", 100), 3)
				Expect(cost(r)).To(BeNumerically(">=", recordCost+texts(reflect.ValueOf(r))), "a field is not counted")
			})

			// A piece has a bound of its own.
			if kind == "Piece" {
				return
			}
			// The texts of messages are cut into pieces and counted; nothing else may be long.
			It("is bounded, apart from the texts of a message", func() {
				r := full(kind, strings.Repeat("\x00", 1<<20), 40)
				if m := r.Message; m != nil {
					m.Role = conversation.RoleAssistant
					for _, text := range m.Texts() {
						*text.Text, *text.Pieces = "", nil
					}
				}
				before := texts(reflect.ValueOf(r))
				Expect(cost(bounded(r))).To(BeNumerically("<", 128<<10), "a field has no bound")
				Expect(texts(reflect.ValueOf(r))).To(Equal(before), "the record that was given stays as it is")
			})
		})
	}

	It("is bounded by leaving out what a rewind cannot have done, and keeps the most that it can", func() {
		most := &history.Rewound{Scope: "Code", Paths: slices.Repeat([]string{strings.Repeat("p", 1024)}, maxRewoundPaths), From: 2, To: 1}
		Expect(boundedRewound(most)).To(Equal(most))
		more := *most
		more.Paths = append(slices.Clone(most.Paths), "p")
		Expect(boundedRewound(&more)).To(BeNil())
		longer := *most
		longer.Paths = append(slices.Clone(most.Paths[1:]), strings.Repeat("p", 1025))
		Expect(boundedRewound(&longer)).To(BeNil())
	})

	It("is bounded by cutting lists of files, but not their paths", func() {
		var c history.Checkpoint
		for range maxChanges + 1 {
			c.Changes = append(c.Changes, history.FileChange{Path: strings.Repeat("p", 50), Action: "Added"})
		}
		c.DirtyFiles = []string{"a", strings.Repeat("b", listedBytes), "c"}
		c = boundedCheckpoint(c)
		Expect(c.Changes).To(HaveLen(maxChanges))
		Expect(c.DirtyFiles).To(HaveExactElements("a"))
	})

	It("keeps no character in words and ids on which a terminal could act", func() {
		c := boundedCheckpoint(history.Checkpoint{
			Trigger: "\x1b]52;c;eA==\aManual", Consistency: "PointInTime", Commit: "ab\ncd", GitHead: "\u202eab",
			Changes: []history.FileChange{{Path: "p", Action: "Added\r"}}, Skipped: []history.SkippedFile{{Path: "p", Reason: "\u009bTooLarge"}},
		})
		Expect(c.Trigger).To(Equal("?]52;c;eA==?Manual"))
		Expect(c.Consistency).To(Equal("PointInTime"))
		Expect(c.Commit).To(Equal("ab?cd"))
		Expect(c.GitHead).To(Equal("?ab"))
		Expect(c.Changes[0].Action).To(Equal("Added?"))
		Expect(c.Skipped[0].Reason).To(Equal("?TooLarge"))
		Expect(boundedCheckpoint(c)).To(Equal(c))
	})
})
