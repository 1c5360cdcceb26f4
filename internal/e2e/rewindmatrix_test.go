//go:build e2e && soak

package e2e

import (
	"fmt"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/testing/rewindmatrix"
)

// tableOfRewinds names the container of the specs and the table that it prints.
const tableOfRewinds = "the matrix of rewinds"

// Every combination of target, scope, preserve and paths, in every state of a task. The cells of a
// state, a target and a scope share a task: each is undone before the next one.
var _ = Describe(tableOfRewinds, Label("slow", "soak"), func() {
	w := newWorld()

	for _, cells := range rewindmatrix.Groups() {
		It(cells[0].Group(), SpecTimeout(20*time.Minute), func(ctx SpecContext) {
			r := w.newRewindable(ctx, cells[0].State)
			defer func() { AddReportEntry(tableOfRewinds, r.tally.String(), ReportEntryVisibilityNever) }()
			for _, cell := range cells {
				if len(cell.Refusals()) > 0 {
					before := r.task(ctx, r.name).Status.Rewind
					r.refuse(ctx, cell)
					Expect(r.task(ctx, r.name).Status.Rewind).To(Equal(before), "nothing was requested")
				}
				if !cell.Legal() {
					continue
				}
				for _, commit := range commitsOf(cell.Target) {
					r.carryOut(ctx, cell, commit)
					r.restart(ctx, fmt.Sprintf("after-%d", r.tally.Legal))
				}
			}
		})
	}
})

// commitsOf are the commits to which the cells of a target are carried out.
func commitsOf(target rewindmatrix.Target) []string {
	if target == rewindmatrix.Commit {
		return []string{"start", "own", "good"}
	}
	return []string{""}
}

// String prints the counts as cells of a table.
func (t tally) String() string {
	return fmt.Sprintf("%d | %d | %d | %d", t.Legal, t.Refused, t.Undone, t.Agreed)
}

var _ = ReportAfterSuite(tableOfRewinds, func(report Report) {
	rows := ""
	for _, spec := range report.SpecReports {
		if spec.NumAttempts == 0 || !slices.Contains(spec.ContainerHierarchyTexts, tableOfRewinds) {
			continue
		}
		for _, entry := range spec.ReportEntries {
			if entry.Name == tableOfRewinds {
				rows += fmt.Sprintf("| %s | %s |\n", spec.LeafNodeText, entry.StringRepresentation())
			}
		}
	}
	if rows != "" {
		fmt.Print("\n| rewind | carried out | refused | undone exactly | previews that agreed |\n|---|---|---|---|---|\n" + rows)
	}
})
