package plan

import (
	"slices"
	"strings"

	"github.com/clew-dev/clew/internal/toolcall"
)

// moveTo has the supervisor's contract moved to another phase.
func (d *calling) moveTo(in *toolcall.PhaseInput) CallPlan {
	c, phases := d.lead.Status.Contract, d.lead.Spec.PhasesOf()
	switch {
	case c == nil:
		return CallPlan{} // its own controller has yet to begin the contract
	case PhaseCallRefused(d.lead, d.o.Call.ID) != "":
		return refuse("the contract %s stays in phase %s: %s. Go on in that phase, and call phase_set again later", c.Name, c.Phase, PhaseCallRefused(d.lead, d.o.Call.ID))
	case PhaseCallHandled(d.lead, d.o.Call.ID), c.Phase == in.Phase:
		return answer(called{Contract: c.Name, Phase: c.Phase}, "the contract %s is in phase %s", c.Name, c.Phase)
	case !slices.Contains(phases, in.Phase):
		return refuse("the contract %s has no phase %s: name one of %s", c.Name, quoted(in.Phase), strings.Join(phases, ", "))
	}
	return CallPlan{Phase: &PhaseCall{ID: d.o.Call.ID, Phase: in.Phase, Attempt: d.o.Call.Attempt}}
}
